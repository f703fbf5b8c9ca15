package cli

import (
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"
)

// logSettings say what is logged, and how.
type logSettings struct {
	level  slog.Level
	format string
}

// logFlags declares the log's settings with the level that is the default.
func (a *app) logFlags(f *pflag.FlagSet, standard slog.Level) {
	f.TextVar(&a.log.level, "log-level", standard, "least `LEVEL` that is logged: DEBUG, INFO, WARN or ERROR")
	f.StringVar(&a.log.format, "log-format", "text", "how the log is written: text or json")
}

// logger returns the log that the settings describe, on standard error.
func (a *app) logger() (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: a.log.level}
	switch a.log.format {
	case "text":
		return slog.New(slog.NewTextHandler(a.std.Err, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(a.std.Err, options)), nil
	}
	return nil, usageError("log-format: %s is neither text nor json", fmt.Sprintf("%q", a.log.format))
}
