package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/keyfile"
)

// saved is what is kept between commands: which servers a person uses, and with which
// keys. Its file can be read by its owner alone.
type saved struct {
	Current  string         `yaml:"current,omitempty"`
	Contexts []savedContext `yaml:"contexts,omitempty"`
}

// savedContext is a server with the key for it.
type savedContext struct {
	Name   string `yaml:"name"`
	Server string `yaml:"server"`
	Key    string `yaml:"key,omitempty"` // empty: logged out
	CA     string `yaml:"ca,omitempty"`  // PEM, to verify the server by; empty: this machine's authorities
}

// savedPath is where it is kept: below XDG_CONFIG_HOME, or ~/.config.
func (a *app) savedPath() (string, error) {
	dir, _ := a.std.LookupEnv("XDG_CONFIG_HOME")
	if dir == "" {
		home, _ := a.std.LookupEnv("HOME")
		if home == "" {
			return "", usageError("there is no place for contexts: set HOME or XDG_CONFIG_HOME")
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "muster", "config.yaml"), nil
}

// load reads what was saved; nothing was when there is no file, or no place for one.
func (a *app) load() (*saved, error) {
	path, err := a.savedPath()
	if err != nil {
		return &saved{}, nil
	}
	text, err := keyfile.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &saved{}, nil
	case err != nil:
		return nil, err
	}
	s := new(saved)
	if err := yaml.Unmarshal(text, s); err != nil { // whose text quotes the file, and so the key
		return nil, usageError("%s is not as muster login writes it: repair it, or remove it and log in again", path)
	}
	return s, nil
}

// save replaces what was saved.
func (a *app) save(s *saved) error {
	path, err := a.savedPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	text, err := yaml.Marshal(s)
	if err != nil {
		return fmt.Errorf("keep the contexts: %w", err)
	}
	return keyfile.Write(path, text)
}

// find returns the context of a name, or nil.
func (s *saved) find(name string) *savedContext {
	if at := slices.IndexFunc(s.Contexts, func(c savedContext) bool { return c.Name == name }); at >= 0 {
		return &s.Contexts[at]
	}
	return nil
}

// must is find; NOT_FOUND names those there are.
func (s *saved) must(name string) (*savedContext, error) {
	if c := s.find(name); c != nil {
		return c, nil
	}
	if len(s.Contexts) == 0 {
		return nil, muster.Errorf(muster.NotFound, "there is no context %s, and no other: make one with muster login URL", quote(name))
	}
	return nil, muster.Errorf(muster.NotFound, "there is no context %s; those that there are: %s", quote(name), listed(s.names(), "and"))
}

func (s *saved) names() []string {
	names := make([]string, len(s.Contexts))
	for i, c := range s.Contexts {
		names[i] = c.Name
	}
	return names
}

// put adds a context, or replaces the one of its name.
func (s *saved) put(c savedContext) {
	if before := s.find(c.Name); before != nil {
		*before = c
		return
	}
	s.Contexts = append(s.Contexts, c)
}

// remove takes a context out.
func (s *saved) remove(name string) {
	s.Contexts = slices.DeleteFunc(s.Contexts, func(c savedContext) bool { return c.Name == name })
	if s.Current == name {
		s.Current = ""
	}
}

// sameServer reports whether two URLs are the same server by the same protocol. A name
// and its address are not: that is not for this program to find out.
func sameServer(one, other string) bool {
	a, errA := origin(one)
	b, errB := origin(other)
	return errA == nil && errB == nil && a == b
}

// origin is the start of a URL, in one spelling: scheme, host and port.
func origin(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", usageError("%s is not the address of a server: use one such as https://ops.example:9000", quote(text))
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return u.Scheme + "://" + host + ":" + port, nil
}
