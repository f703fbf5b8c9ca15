package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

const version = "0.1.0"

// buildInfo is what `muster version` tells.
type buildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuildInfo() buildInfo {
	info := buildInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Commit = setting.Value
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		}
	}
	return info
}

func (i buildInfo) String() string {
	return fmt.Sprintf("muster %s (%s, %s%s)", i.Version, i.Go, i.Platform, commitSuffix(i))
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			info := readBuildInfo()
			return a.write(info, func(w io.Writer) {
				_, _ = fmt.Fprintln(w, info)
			})
		},
	}
}

func commitSuffix(info buildInfo) string {
	if info.Commit == "" {
		return ""
	}
	suffix := ", " + info.Commit[:min(12, len(info.Commit))]
	if info.Modified {
		suffix += " and changes"
	}
	return suffix
}
