package main

import (
	"bytes"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

// planted is a secret that was made, or typed, during a test, and what to look for.
type planted struct {
	what  string
	forms [][]byte
}

// ofKey is planted for the text of a key, a sign-in code or a join token: its secret as
// the text has it, as bytes, and as others would write these.
func ofKey(t *testing.T, what, text string) planted {
	t.Helper()
	secret, err := func() (auth.Secret, error) {
		if strings.HasPrefix(text, "muster-join_") {
			token, err := auth.ParseJoinToken(text)
			return token.Secret, err
		}
		key, err := auth.ParseKey(text)
		return key.Secret, err
	}()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	word := strings.Split(text, "_")[2][:43]
	return planted{what, [][]byte{[]byte(word), secret[:], []byte(hex.EncodeToString(secret[:])), []byte(base64.StdEncoding.EncodeToString(secret[:]))}}
}

func ofText(what, text string) planted { return planted{what, [][]byte{[]byte(text)}} }

// in returns the places that have any of the secrets.
func in(place string, text []byte, secrets []planted) []string {
	var found []string
	for _, s := range secrets {
		if slices.ContainsFunc(s.forms, func(form []byte) bool { return bytes.Contains(text, form) }) {
			found = append(found, s.what+" in "+place)
		}
	}
	return found
}

// inFiles searches the files below a directory, but for those that are there to keep a secret.
func inFiles(t *testing.T, dir string, secrets []planted, keepers ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || slices.Contains(keepers, entry.Name()) {
			return err
		}
		text, err := os.ReadFile(path)
		found = append(found, in(path, text, secrets)...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// inProcesses searches the arguments and the environments of all processes.
func inProcesses(t *testing.T, secrets []planted) []string {
	t.Helper()
	var found []string
	for _, file := range []string{"cmdline", "environ"} {
		paths, err := filepath.Glob("/proc/[0-9]*/" + file)
		if err != nil || len(paths) == 0 {
			t.Fatal(paths, err)
		}
		for _, path := range paths {
			text, _ := os.ReadFile(path) // it may have ended meanwhile
			found = append(found, in(path, text, secrets)...)
		}
	}
	return found
}

// inTables searches what the tables of a database have, but for the columns that are
// there to keep it.
func inTables(t *testing.T, path string, secrets []planted, keepers ...string) []string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var found []string
	for _, name := range column(t, db, "SELECT m.name || '.' || c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'") {
		table, field, _ := strings.Cut(name, ".")
		if slices.Contains(keepers, name) {
			continue
		}
		for _, text := range column(t, db, fmt.Sprintf("SELECT COALESCE(%q, '') FROM %q", field, table)) {
			found = append(found, in(name, []byte(text), secrets)...)
		}
	}
	return found
}

func column(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(query, err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		out = append(out, text)
	}
	return out
}

// secretive is a server with debug logs, an agent that joined, and all that they and the
// commands were given to keep to themselves.
type secretive struct {
	*gated
	api     *client.Client
	data    string // the server's directory
	said    []byte // what commands wrote that is no secret by itself
	secrets []planted
}

// cli runs a command on the server's host and returns what it writes to standard output;
// the rest, and all of one that fails, is kept to be searched.
func (s *secretive) cli(stdin string, env []string, args ...string) string {
	s.t.Helper()
	process := s.net.command(hostServer, args...)
	process.Env = append(append(os.Environ(), "MUSTER_SERVER=http://127.0.0.1:9000"), env...)
	process.Stdin = strings.NewReader(stdin)
	var out, failed bytes.Buffer
	process.Stdout, process.Stderr = &out, &failed
	err := process.Run()
	s.said = append(s.said, failed.Bytes()...)
	if err != nil {
		s.said = append(s.said, out.Bytes()...)
		if _, ended := err.(*exec.ExitError); !ended {
			s.t.Fatal(err)
		}
		return ""
	}
	return strings.TrimSpace(out.String())
}

func (s *secretive) plant(what, text string) string {
	s.t.Helper()
	s.secrets = append(s.secrets, ofKey(s.t, what, text))
	return text
}

func newSecretive(t *testing.T) *secretive {
	t.Helper()
	t.Setenv("MUSTER_LOG_LEVEL", "DEBUG")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(os.Getenv("HOME"), ".config"))
	s := &secretive{gated: newGated(t)}
	s.api = s.serve(hostServer)
	s.data = filepath.Join(s.dir, fmt.Sprint("server", hostServer))
	admin, err := os.ReadFile(filepath.Join(s.data, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	s.plant("the first key", strings.TrimSpace(string(admin)))
	token := s.plant("a join token", s.token(s.api))
	s.net.start(hostNodeA, s.log, s.agentArgs(hostNodeA, "--join", token+"@"+addressOf(hostServer))...)
	s.awaitStart(s.api, hostNodeA, 1)
	return s
}

// keys makes keys, tokens and sessions in every way that there is, and makes mistakes with them.
func (s *secretive) keys() {
	s.t.Helper()
	file := []string{"MUSTER_KEY_FILE=" + filepath.Join(s.data, "admin.key")}
	key := s.plant("a key of key create", lastWord(s.cli("", file, "key", "create", "ci", "--role", "OPERATOR")))
	s.plant("a key of key rotate", lastWord(s.cli("", file, "key", "rotate", "k-"+strings.Split(strings.Split(key, "_")[1], "-")[1], "--overlap", "1h")))
	for word := range strings.FieldsSeq(s.cli("", file, "token", "create")) {
		if token, _, ok := strings.Cut(word, "@"); ok && strings.HasPrefix(token, "muster-join_") {
			s.plant("a token of token create", token)
		}
	}
	_, code, _ := strings.Cut(lastWord(s.cli("", file, "playground")), "#")
	session := s.redeem(s.plant("a sign-in code", code))
	s.redeem(code) // a second time
	s.cli(session+"\n", nil, "login", "http://127.0.0.1:9000", "--name", "here")
	foreign := s.plant("a foreign cluster's key", auth.Key{ID: "k-1", Secret: auth.NewSecret()}.Text())
	for _, wrong := range []string{foreign, key[:len(key)-1] + "~", strings.Replace(key, "muster_", "muster-join_", 1)} {
		s.cli("", []string{"MUSTER_KEY=" + wrong}, "node", "list")
		s.cli(wrong+"\n", nil, "login", "http://127.0.0.1:9000", "--name", "wrong")
		s.get(wrong)
	}
	s.cli("", file, "key", "revoke", key) // its text where its id belongs
	s.cli("", file, "token", "revoke", key)
	s.cli("", file, "node", "show", key)
	s.cli("", file, "instance", "show", key)
	s.cli("", file, "audit")
}

func lastWord(text string) string {
	words := strings.Fields(text)
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

// redeem signs a browser in and returns the key that it gets.
func (s *secretive) redeem(code string) string {
	s.t.Helper()
	body, _ := json.Marshal(map[string]string{"code": code})
	response, err := (&http.Client{Transport: s.net.transport(hostServer)}).Post("http://127.0.0.1:9000/sign-in", "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	var in struct{ Key string }
	if json.Unmarshal(text, &in); in.Key == "" {
		s.said = append(s.said, text...)
		return ""
	}
	return s.plant("a session's key", in.Key)
}

// get presents a key in the places where it does and where it does not belong.
func (s *secretive) get(key string) {
	s.t.Helper()
	for _, path := range []string{"/graphql?query={__typename}&key=" + key, "/metrics", "/images/blobs/" + key, "/" + key, "/graphql?query={node(id:%22" + key + "%22){id}}"} {
		request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://127.0.0.1:9000"+path, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+key)
		response, err := s.net.transport(hostServer).RoundTrip(request)
		if err != nil {
			s.t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		s.said = append(s.said, text...)
	}
}

// env gives an instance and a service values that their node alone is to know.
func (s *secretive) env() planted {
	s.t.Helper()
	const value = "planted-3f9c-value"
	env := muster.Map{"TOKEN": value}
	i, err := s.api.LaunchInstance(s.t.Context(), muster.LaunchInstanceInput{Type: muster.Nano, Image: "none", Env: env, Queue: true, RequestID: "r1"})
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = s.api.DeployService(s.t.Context(), muster.DeployServiceInput{InstanceID: &i.ID, Name: "x", Command: []string{"x"}, Env: env, RequestID: "r2"})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, wrong := range []muster.Map{{"A B": value}, {"A": value + "\x00"}} {
		_, err := s.api.LaunchInstance(s.t.Context(), muster.LaunchInstanceInput{Type: muster.Nano, Image: "none", Env: wrong, Queue: true})
		s.said = append(s.said, fmt.Sprint(err)...)
	}
	if _, err := s.api.LabelInstance(s.t.Context(), muster.LabelInput{ID: string(i.ID), Set: muster.Map{"a": "b"}}); err != nil {
		s.t.Fatal(err)
	}
	return ofText("a value of an environment", value)
}

// TestSecrets_AreNowhere plants secrets wherever there are any, and searches everything
// that remains: each of the searches finds one that lies open.
func TestSecrets_AreNowhere(t *testing.T) {
	s := newSecretive(t)
	s.keys()
	if len(s.secrets) < 8 {
		t.Fatalf("only %d secrets were planted", len(s.secrets))
	}
	value := s.env()
	all := append(slices.Clone(s.secrets), value)
	open := s.open()
	logs, err := os.ReadFile(s.log.Name())
	if err != nil || len(logs) == 0 {
		t.Fatal(len(logs), err)
	}
	database := filepath.Join(s.data, "muster.db")
	for what, search := range map[string]func([]planted) []string{
		"the server's files": func(of []planted) []string { return inFiles(t, s.data, without(of, value), "admin.key") },
		"the database":       func(of []planted) []string { return inTables(t, database, of, "instances.env", "services.env") },
		"the agent's files": func(of []planted) []string {
			return inFiles(t, filepath.Join(s.dir, fmt.Sprint("agent", hostNodeA)), of, "access.key")
		},
		"the files of commands":  func(of []planted) []string { return inFiles(t, os.Getenv("HOME"), of, "config.yaml") },
		"the processes":          func(of []planted) []string { return inProcesses(t, of) },
		"the logs":               func(of []planted) []string { return in("the logs", logs, of) },
		"what commands complain": func(of []planted) []string { return in("what commands say", s.said, of) },
	} {
		if found := search(all); len(found) > 0 {
			t.Errorf("%s have %q", what, found)
		}
		if found := search([]planted{open[what]}); len(found) == 0 {
			t.Errorf("%s were not searched: what lies open there was not found", what)
		}
	}
}

func without(of []planted, one planted) []planted {
	return slices.DeleteFunc(slices.Clone(of), func(p planted) bool { return p.what == one.what })
}

// open puts something into each of the places that are searched, where it is to be found.
func (s *secretive) open() map[string]planted {
	s.t.Helper()
	const word = "lies-open-41d7"
	if _, err := s.api.CordonNode(s.t.Context(), fmt.Sprint("node", hostNodeA), word); err != nil {
		s.t.Fatal(err)
	}
	s.said = append(s.said, word...)
	for _, dir := range []string{os.Getenv("HOME"), filepath.Join(s.dir, fmt.Sprint("agent", hostNodeA))} {
		if err := os.WriteFile(filepath.Join(dir, "note"), []byte(word), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	process := exec.Command("sleep", "600")
	process.Env = []string{"NOTE=" + word}
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	return map[string]planted{
		"the server's files": ofText("a reason", word), "the database": ofText("a reason", word), "the agent's files": ofText("a note", word),
		"the files of commands": ofText("a note", word), "the processes": ofText("a note", word), "the logs": ofText("a message", "the node has joined"),
		"what commands complain": ofText("a note", word),
	}
}
