package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/muster-cloud/muster/keyfile"
)

// adminKeyName is what the key of the first start is called.
const adminKeyName = "admin"

// AdminKeyFile is where the key of the first start is, which the CLI on this machine finds.
func AdminKeyFile(dataDir string) string { return filepath.Join(dataDir, "admin.key") }

// ensureAdminKey makes the ADMIN key of the first start and its file, or makes sure
// that nobody else can read the file. A file that was deleted is not made again, unless
// its key was never used: then it was lost on the way to the disk.
func (s *Server) ensureAdminKey(ctx context.Context) error {
	path := AdminKeyFile(s.options.DataDir)
	_, err := keyfile.Read(path)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	text, err := s.registry.EnsureAdminKey(ctx, adminKeyName)
	if err != nil || text == "" {
		return err
	}
	if err := keyfile.Write(path, []byte(text+"\n")); err != nil {
		return fmt.Errorf("the first access key: %w", err)
	}
	s.log.Info("made the first access key", "file", path)
	return nil
}
