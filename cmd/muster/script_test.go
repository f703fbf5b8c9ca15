package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// TestMain lets the scripts run this binary under the names of the programs.
func TestMain(m *testing.M) {
	testscript.Main(inOwnHome{m}, map[string]func(){
		"muster":  main,
		"get":     get,
		"graphql": postGraphQL,
		"report":  runReport,
		"serve":   runServe,
		"sql":     runSQL,
		"witness": runWitness,
		"natsd":   runNATS,
	})
}

// inOwnHome runs the tests with directories of their own for what commands keep and find
// on a machine, so that nothing of this one is touched.
type inOwnHome struct{ *testing.M }

func (m inOwnHome) Run() int {
	dir, err := os.MkdirTemp("", "muster-home-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for name, value := range homeIn(dir) {
		if err := errors.Join(os.Mkdir(value, 0o700), os.Setenv(name, value)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.M.Run()
}

// homeIn are the variables that say where a command keeps and finds things.
func homeIn(dir string) map[string]string {
	return map[string]string{"MUSTER_RUN_DIR": filepath.Join(dir, "run"), "XDG_CONFIG_HOME": filepath.Join(dir, "config")}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready":    ready,
			"exitcode": exitCode,
			"await":    await,
			"capture":  capture,
		},
		Setup: func(env *testscript.Env) error {
			port, err := freePort()
			if err != nil {
				return err
			}
			program, err := exec.LookPath("muster")
			if err != nil {
				return err
			}
			for name, value := range homeIn(env.WorkDir) {
				if err := os.Mkdir(value, 0o700); err != nil {
					return err
				}
				env.Setenv(name, value)
			}
			env.Setenv("MUSTER", program)
			env.Setenv("PORT", port)
			env.Setenv("DATA", filepath.Join(env.WorkDir, "data"))
			env.Setenv("MUSTER_SERVER", "http://127.0.0.1:"+port)
			env.Setenv("LONG", strings.Repeat("x", 300))
			env.Setenv("REGISTER", "mutation($input: RegisterNodeInput!) { registerNode(input: $input) { node { id status } } }")
			env.Setenv("LAUNCH", "mutation($input: LaunchInstanceInput!) { launchInstance(input: $input) { instance { id } } }")
			return nil
		},
	})
}

// freePort returns a port of loopback that nobody listens on now. It is below those
// that outgoing connections are given, of which the tests make thousands.
func freePort() (string, error) {
	var last error
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return "", last
}

// ready waits until the server of the script takes requests.
func ready(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: ready")
	}
	url := ts.Getenv("MUSTER_SERVER") + "/readyz"
	var last error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get(url)
		if last = err; err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return
		}
		last = fmt.Errorf("it answered %s", response.Status)
	}
	ts.Fatalf("the server at %s is not ready: %v", url, last)
}

// await waits until a file, or what an URL answers, matches: await FILE|URL PATTERN.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE|URL PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var text string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if text, err = content(ts, args[0]); err == nil && pattern.MatchString(text) {
			return
		}
	}
	ts.Fatalf("%s does not match %s: %v\n%s", args[0], args[1], err, text)
}

func content(ts *testscript.TestScript, source string) (string, error) {
	if !strings.HasPrefix(source, "http://") {
		text, err := os.ReadFile(ts.MkAbs(source))
		return string(text), err
	}
	response, err := http.Get(source)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// capture keeps a part of a file in a variable: capture VARIABLE FILE PATTERN,
// where the pattern has one group.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: capture VARIABLE FILE PATTERN")
	}
	found := regexp.MustCompile("(?m)" + args[2]).FindStringSubmatch(ts.ReadFile(args[1]))
	if len(found) != 2 {
		ts.Fatalf("%s does not match %s", args[1], args[2])
	}
	ts.Setenv(args[0], found[1])
}

// exitCode runs a program and wants it to end with a certain exit code:
// exitcode CODE PROGRAM ARGS...
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode CODE PROGRAM ARGS...")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exited, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = fmt.Sprint(exited.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("%s ended with %s instead of %s", args[1], got, args[0])
	}
}

// ownKey is the access key that the programs of the scripts present: that of MUSTER_KEY,
// else that of the script's server, if it has one.
func ownKey() string {
	if key := os.Getenv("MUSTER_KEY"); key != "" {
		return key
	}
	text, _ := os.ReadFile(filepath.Join(os.Getenv("DATA"), "admin.key"))
	return strings.TrimSpace(string(text))
}

func present(request *http.Request, key string) {
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
}

// get is the program get: it prints the status, the Location and the body of what
// a path of the server answers: get [-host HOST] [-upgrade] [-stranger] PATH.
func get() {
	host := flag.String("host", "", "the Host header")
	stranger := flag.Bool("stranger", false, "present no key")
	upgrade := flag.Bool("upgrade", false, "ask for a WebSocket")
	flag.Parse()
	request, err := http.NewRequest(http.MethodGet, os.Getenv("MUSTER_SERVER")+flag.Arg(0), nil)
	if err == nil {
		request.Host = *host
		if *upgrade {
			request.Header = http.Header{
				"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
				"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {"graphql-transport-ws"},
			}
		}
		if !*stranger {
			present(request, ownKey())
		}
		err = exchange(os.Stdout, request)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// exchange makes a request and prints the answer, without following it elsewhere.
func exchange(out io.Writer, request *http.Request) error {
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var body []byte
	if response.StatusCode != http.StatusSwitchingProtocols {
		if body, err = io.ReadAll(response.Body); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%d %s%s\n", response.StatusCode, response.Header.Get("Location"), bytes.TrimSpace(body))
	return err
}

// postGraphQL is the program graphql: it sends a document to the server as it
// is, and prints the answer: graphql [-host HOST] [-key KEY] DOCUMENT [VARIABLES].
func postGraphQL() {
	host := flag.String("host", "", "the Host header")
	key := flag.String("key", ownKey(), "what is presented")
	flag.Parse()
	if err := post(os.Stdout, *host, *key, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func post(out io.Writer, host, key string, args []string) error {
	document, variables := args[0], "{}"
	if len(args) > 1 {
		variables = args[1]
	}
	body, err := json.Marshal(map[string]any{"query": document, "variables": json.RawMessage(variables)})
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, os.Getenv("MUSTER_SERVER")+"/graphql", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Host = host
	present(request, key)
	request.Header.Set("Content-Type", "application/json")
	return exchange(out, request)
}

// runSQL is the program sql: it runs a statement on a database file: sql FILE STATEMENT.
func runSQL() {
	db, err := sql.Open("sqlite3", os.Args[1])
	if err == nil {
		_, err = db.Exec(os.Args[2])
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runWitness is the program witness: a server that notes the requests that come to it, and
// refuses them: witness FILE. Its URL is in the file of that name that ends with .url.
func runWitness() {
	if err := witness(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func witness(path string) error {
	seen, err := os.Create(path)
	if err != nil {
		return err
	}
	defer seen.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	if err := os.WriteFile(strings.TrimSuffix(path, ".txt")+".url", []byte(url), 0o600); err != nil {
		return err
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(seen, r.Method, r.URL)
		_ = r.Header.Write(seen)
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(seen, "%s\n", body)
		w.WriteHeader(http.StatusForbidden)
	})}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// runReport is the program report: it says what an agent says of its only
// instance: report INSTANCE STATUS [REASON [EXITCODE]]. GONE: it has none.
func runReport() {
	if err := report(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func report(ctx context.Context, args []string) error {
	c, err := client.New(client.Options{URL: os.Getenv("MUSTER_SERVER"), Key: ownKey()})
	if err != nil {
		return err
	}
	i, err := c.Instance(ctx, muster.InstanceID(args[0]))
	if err != nil {
		return err
	}
	n, err := c.Node(ctx, string(i.Node.UID))
	if err != nil {
		return err
	}
	info, err := c.ServerInfo(ctx)
	if err != nil {
		return err
	}
	input := muster.ReportInstancesInput{
		UID: n.UID, Incarnation: n.Incarnation, Sequence: info.Revision, Epoch: info.Epoch, AppliedRevision: n.DesiredRevision,
	}
	if args[1] != "GONE" {
		machine := muster.InstanceReportInput{
			Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: i.Generation,
			Status: muster.InstanceStatus(args[1]), Addr: i.Addr, Output: "bye\n\x1b[2Jbye",
		}
		if len(args) > 2 {
			machine.Reason = args[2]
		}
		if len(args) > 3 {
			code, err := strconv.Atoi(args[3])
			if err != nil {
				return err
			}
			machine.ExitCode = &code
		}
		input.Instances = append(input.Instances, machine)
	}
	_, err = c.ReportInstances(ctx, input)
	return err
}
