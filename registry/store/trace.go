package store

import (
	"context"
	"sync/atomic"
	"time"

	"gorm.io/gorm/logger"
)

// counting is what GORM tells its statements to. It counts them and says
// nothing: errors are returned, and whoever gets them logs.
type counting struct{ n atomic.Int64 }

func (c *counting) LogMode(logger.LogLevel) logger.Interface { return c }
func (c *counting) Info(context.Context, string, ...any)     {}
func (c *counting) Warn(context.Context, string, ...any)     {}
func (c *counting) Error(context.Context, string, ...any)    {}

func (c *counting) Trace(context.Context, time.Time, func() (string, int64), error) { c.n.Add(1) }
