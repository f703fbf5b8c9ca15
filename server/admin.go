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
// that nobody else can read the file. A file that was deleted, or whose key this registry
// does not know (its database is new), is made again only when nobody else could come in:
// there is no good ADMIN key, or its own was never used, and so was lost on the way here.
func (s *Server) ensureAdminKey(ctx context.Context) error {
	path := AdminKeyFile(s.options.DataDir)
	if s.options.NewAdminKey {
		text, err := s.registry.RecoverAdminKey(ctx, adminKeyName)
		if err != nil {
			return err
		}
		return s.keepAdminKey(path, text)
	}
	old, err := keyfile.Read(path)
	there := err == nil
	switch {
	case there && s.registry.Opens(string(old)):
		return nil
	case !there && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	text, err := s.registry.EnsureAdminKey(ctx, adminKeyName)
	if err == nil && text == "" && there {
		s.log.Warn("the access key in the file opens nothing here, and others do: delete the file, or put one of them into it", "file", path)
	}
	if err != nil || text == "" {
		return err
	}
	return s.keepAdminKey(path, text)
}

func (s *Server) keepAdminKey(path, text string) error {
	if err := keyfile.Write(path, []byte(text+"\n")); err != nil {
		return fmt.Errorf("the access key of the start: %w", err)
	}
	s.log.Info("made an ADMIN key", "file", path)
	return nil
}
