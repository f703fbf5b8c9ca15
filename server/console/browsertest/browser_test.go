package browsertest_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/server"
)

var screenshots = flag.String("screenshots", "", "a folder to write screenshots of the console to")

// journal is what the browser asked for and said.
type journal struct {
	mu        sync.Mutex
	requests  []string
	messages  []string
	exchanges []*exchange // in the order of their beginning
	byID      map[network.RequestID]*exchange
}

// exchange is a request and how it was answered; the page itself may not be told.
type exchange struct {
	url    string
	status int // 0: it was not
}

// exchange is the one of an id, whatever of it comes first.
func (j *journal) exchange(id network.RequestID) *exchange {
	e := j.byID[id]
	if e == nil {
		e = &exchange{}
		if j.byID == nil {
			j.byID = map[network.RequestID]*exchange{}
		}
		j.byID[id] = e
		j.exchanges = append(j.exchanges, e)
	}
	return e
}

// handshake is what the console says of a WebSocket that was refused.
var handshake = regexp.MustCompile(`^.*WebSocket connection to '(.*)' failed: .*Unexpected response code: (\d+)`)

func (j *journal) record(event any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		j.requests = append(j.requests, e.Request.URL)
		j.exchange(e.RequestID).url = e.Request.URL
	case *network.EventResponseReceivedExtraInfo:
		j.exchange(e.RequestID).status = int(e.StatusCode)
	case *network.EventWebSocketCreated:
		j.requests = append(j.requests, e.URL)
	case *log.EventEntryAdded:
		j.messages = append(j.messages, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		if m := handshake.FindStringSubmatch(e.Entry.Text); m != nil {
			status, _ := strconv.Atoi(m[2])
			j.exchanges = append(j.exchanges, &exchange{strings.Replace(m[1], "ws", "http", 1), status})
		}
	case *runtime.EventConsoleAPICalled:
		for _, arg := range e.Args {
			j.messages = append(j.messages, fmt.Sprintf("%s: %s", e.Type, arg.Value))
		}
	case *runtime.EventExceptionThrown:
		j.messages = append(j.messages, "exception: "+e.ExceptionDetails.Text+" "+string(e.ExceptionDetails.Exception.Description))
	}
}

// answered are the statuses of the answers that came from an origin.
func (j *journal) answered(origin string) (statuses []int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.exchanges {
		if strings.HasPrefix(e.url, origin+"/") && e.status != 0 {
			statuses = append(statuses, e.status)
		}
	}
	return statuses
}

// says tells whether the console has said something.
func (j *journal) says(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.messages, func(message string) bool { return strings.Contains(message, text) })
}

// check fails the test for every request that left the server, and for every
// word in the console: a violated content security policy is one.
func (j *journal) check(t *testing.T, addr string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	sockets := 0
	for _, url := range j.requests {
		scheme, rest, _ := strings.Cut(url, "://")
		if scheme == "ws" {
			sockets++
		}
		if !strings.HasPrefix(rest, addr+"/") && !strings.HasPrefix(url, "data:") {
			t.Errorf("the page asked for %s", url)
		}
	}
	if len(j.requests) < 5 || sockets != 1 {
		t.Errorf("saw %d sockets in the requests %q", sockets, j.requests)
	}
	for _, message := range j.messages {
		t.Errorf("the browser's console says: %s", message)
	}
}

// open starts a browser that reaches nothing but this machine, with a profile
// of its own, and records what it does.
func open(t *testing.T, extra ...chromedp.ExecAllocatorOption) (context.Context, *journal) {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath("chromium"), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1400, 900),
		chromedp.Env("TMPDIR="+t.TempDir(), "HOME="+t.TempDir()),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	}
	for _, name := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
		"disable-background-networking", "disable-component-update", "disable-sync",
	} {
		options = append(options, chromedp.Flag(name, true))
	}
	options = append(options, extra...)
	// The test's own context ends before its clean-up, which closes the browser.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("close the browser: %v", err)
		}
	})
	j := &journal{}
	if err := chromedp.Listen(ctx, j.record); err != nil {
		t.Fatal(err)
	}
	return ctx, j
}

// pollTime is how long the page is waited for.
const pollTime = 20 * time.Second

type step = chromedp.Action[chromedp.Void]

func do(t *testing.T, ctx context.Context, steps ...step) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		screenshot(t, ctx, "failed")
		t.Fatal(err)
	}
}

// shows waits until an element has text in it.
func shows(element, text string) step {
	const script = `document.querySelector(%q)?.innerText.replace(/\u00a0/g, " ").includes(%q)`
	return chromedp.Poll[chromedp.Void](fmt.Sprintf(script, element, text), chromedp.WithPollingTimeout(pollTime))
}

// openTab opens the tab of an operation and waits until GraphiQL has noticed it:
// it reads the operation's name a moment after the tab's text.
func openTab(name string) step {
	const noticed = `(s => s && s.tabs[s.activeTabIndex].operationName)(JSON.parse(localStorage["graphiql:tabState"] ?? null)) === %q`
	return chromedp.Steps(
		chromedp.Click(fmt.Sprintf(`//*[contains(@class, "graphiql-tab")]//button[normalize-space()=%q]`, name)),
		chromedp.Poll[chromedp.Void](fmt.Sprintf(noticed, name), chromedp.WithPollingTimeout(pollTime)),
	)
}

func screenshot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if *screenshots == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// execute is the button that runs an operation.
const execute = `button.graphiql-execute-button`

func TestConsole_InChromium(t *testing.T) {
	site := serve(t, server.Options{Keyless: true})
	site.register("", "rack1-a")
	ctx, journal := open(t)

	do(t, ctx,
		chromedp.Navigate("http://"+site.addr+"/playground/"),
		chromedp.WaitVisible(`.graphiql-query-editor .view-line`),
	)
	if title, err := chromedp.Run(ctx, chromedp.Title()); err != nil || title != "muster" {
		t.Errorf("the page's title is %q (%v)", title, err)
	}
	screenshot(t, ctx, "1-open")

	do(t, ctx, chromedp.Click(execute), shows(".graphiql-response", `"id": "rack1-a"`))
	screenshot(t, ctx, "2-query")

	// The schema has arrived, so its introspection passed the server's limits.
	do(t, ctx, chromedp.Click(`button[aria-label="Show Documentation Explorer"]`),
		shows(".graphiql-plugin", "The GraphQL contract of muster"), shows(".graphiql-plugin", "mutation: Mutation"))
	screenshot(t, ctx, "3-documentation")

	do(t, ctx, openTab("Watch"), chromedp.Click(execute), shows(".graphiql-response", `"type": "SYNCED"`))
	for _, id := range []muster.NodeID{"rack1-b", "rack1-c"} {
		site.register("", id)
		do(t, ctx, shows(".graphiql-response", fmt.Sprintf(`"id": %q`, id)))
	}
	screenshot(t, ctx, "4-watch")

	journal.check(t, site.addr)
}
