package cli

import (
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logSettings say what is logged, and how.
type logSettings struct {
	level  slog.Level
	format string
}

// declare declares the log's settings with the level that is the default.
func (l *logSettings) declare(f *pflag.FlagSet, standard slog.Level) {
	f.TextVar(&l.level, "log-level", standard, "least `LEVEL` that is logged: DEBUG, INFO, WARN or ERROR")
	f.StringVar(&l.format, "log-format", "text", "how the log is written: text or json")
}

// open returns the log that the settings describe.
func (l *logSettings) open(w io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: l.level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usageError("log-format: %s is neither text nor json", quote(l.format))
}
