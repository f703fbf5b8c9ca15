package deptest_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/muster-cloud/muster"

// layer says which packages of ours one, and those below it when it ends in
// "/...", may import. A package that is not here may not exist: adding one is
// adding a row.
type layer struct {
	pkg    string
	may    []string
	reason string
}

// house lists the specific rows before the general ones; arrows point down.
var house = []layer{
	{".", nil, "the vocabulary stands on nothing, so that everything can stand on it"},
	{"archive", nil, "what an image is on its way: all who read one check the same"},
	{"keyfile", []string{"."}, "secrets in files: all who keep one keep it the same way"},
	{"local", []string{"."}, "how programs find the server of their machine: the commands write it and read it, and neither needs the other's code"},
	{"registry/images", []string{".", "archive"}, "a leaf like the others, on the format that it keeps"},
	{"registry", []string{".", "registry/watch", "registry/scheduler", "registry/liveness", "registry/auth"}, "the use cases know their parts, but no technology: what they need is an interface of their own"},
	{"registry/auth", []string{"."}, "what both ends of a connection spell the same: the client and the agent use it too"},
	{"registry/...", []string{"."}, "leaves never import each other: what two of them need is vocabulary, or the registry's to connect"},
	{"registration", []string{"."}, "a protocol, usable without the registry"},
	{"graph/scalar", []string{"."}, "how the vocabulary is written in GraphQL"},
	{"graph/generated", []string{".", "graph/scalar"}, "bound to the vocabulary, nothing between"},
	{"graph/transport", []string{".", "registry", "registry/watch"}, "carries operations and streams, and does not know which there are"},
	{"graph/transport/audit", nil, "only a test"},
	{"graph", []string{".", "registry", "registry/watch", "graph/scalar", "graph/generated", "graph/transport"}, "resolvers parse, call once, and return"},
	{"server/console", nil, "a page: it speaks to the API like everybody else"},
	{"server/console/browsertest", nil, "only a test"},
	{"server/dns", []string{".", "registry"}, "one of the outputs"},
	{"server", []string{".", "archive", "keyfile", "registry", "registry/...", "registration", "graph", "graph/...", "server/console", "server/dns"}, "the one place where the control plane is put together"},
	{"client/operations", []string{"."}, "generated from the schema"},
	{"client", []string{".", "client/operations", "registry/auth"}, "it speaks to a registry over the network, never to its code"},
	{"agent/driver", []string{"."}, "the seam: it knows no way to run an instance"},
	{"agent/driver/drivertest", []string{".", "agent/driver"}, "every driver passes it, so it knows none"},
	{"agent/image", []string{".", "archive", "agent/driver"}, "a store of trees, which it unpacks"},
	{"agent/nspawn", []string{".", "archive", "agent/driver", "agent/failpoint", "agent/image", "agent/network", "agent/nspawn/..."}, "a driver is put together from parts that know neither it nor each other"},
	{"agent/deploy", []string{".", "agent/driver", "agent/proc", "agent/check", "agent/artifact"}, "a service is put together from parts that know neither it nor each other"},
	{"agent/...", []string{".", "agent/driver"}, "leaves never import each other: the agent connects them"},
	{"agent", []string{".", "client", "client/operations", "registry/auth", "keyfile", "agent/..."}, "a node needs the API and its driver, nothing of the control plane"},
	{"cli/render", []string{".", "client"}, "an output that reads the API"},
	{"cli/render/tooltest", nil, "only a test"},
	{"cli/sim", []string{".", "client", "agent", "agent/hollow"}, "a load on a server comes over the network, like every other"},
	{"cli/doctor", []string{".", "client", "agent/..."}, "it asks the packages whose needs it checks"},
	{"cli", []string{".", "archive", "keyfile", "local", "client", "registry/auth", "registration", "server", "agent", "agent/...", "cli/render", "cli/sim", "cli/doctor"}, "commands hand over to the package that does it"},
	{"cmd/muster", []string{"cli"}, "main hands over"},
	{"internal/...", nil, "tools of the repository"},
}

// ban forbids what a package reaches, however many imports away.
type ban struct {
	from   string
	never  []string
	reason string
}

var bans = []ban{
	{".", []string{"net/http", "os", "database/sql", "log/slog"}, "the vocabulary does nothing: no I/O, no log"},
	{"agent", []string{"gorm.io/...", "github.com/mattn/go-sqlite3", "database/sql", "registry", "server"}, "an agent on a small machine must not carry a database, and must not reach around the API"},
	{"client", []string{"gorm.io/...", "registry", "graph", "graph/...", "server"}, "whoever imports the client gets a client"},
	{"registry/auth", []string{"os", "net/http", "log", "database/sql"}, "it reads no file, calls nobody and says nothing: what it is given it judges"},
	{"registry", []string{"gorm.io/...", "registry/store", "net/http", "github.com/99designs/gqlgen/..."}, "the use cases are the same over any store and any API"},
	{"registration", []string{"gorm.io/...", "database/sql", "registry", "graph", "client"}, "a protocol: whoever has a NATS server and nothing else of ours can use it"},
	{"agent", []string{"registration", "github.com/nats-io/..."}, "a node reports what it runs; the registry alone decides what is published"},
	{"client", []string{"registration", "github.com/nats-io/..."}, "lookups are answered by the API"},
	{"registry/scheduler", []string{"os", "net", "net/http", "log/slog", "math/rand", "math/rand/v2"}, "placement is a pure function: the same nodes give the same answer"},
	{"graph", []string{"gorm.io/...", "registry/store"}, "a resolver that reaches the database would go around the use cases"},
	{"graph/transport", []string{"gorm.io/..."}, "a transport that reaches the database would go around the use cases"},
}

func load(t *testing.T) map[string]*packages.Package {
	t.Helper()
	config := &packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
		Dir:  root,
	}
	loaded, err := packages.Load(config, "./...")
	if err != nil {
		t.Fatal(err)
	}
	ours := make(map[string]*packages.Package, len(loaded))
	for _, p := range loaded {
		for _, problem := range p.Errors {
			t.Errorf("%s: %v", p.PkgPath, problem)
		}
		ours[relative(p.PkgPath)] = p
	}
	if len(ours) < 10 {
		t.Fatalf("only %d packages were found", len(ours))
	}
	return ours
}

// relative gives a package of ours the name that the rules use.
func relative(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// matches tells whether pattern names pkg, or with "/..." something below it.
func matches(pattern, pkg string) bool {
	above, tree := strings.CutSuffix(pattern, "/...")
	return pkg == pattern || tree && strings.HasPrefix(pkg, above+"/")
}

func anyMatches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, pkg) })
}

func TestImports_PointDown(t *testing.T) {
	for name, p := range load(t) {
		row := slices.IndexFunc(house, func(l layer) bool { return matches(l.pkg, name) })
		if row < 0 {
			t.Errorf("%s has no place in the house: add a row that says what it may import and why", name)
			continue
		}
		for path := range p.Imports {
			if isOurs(path) && !anyMatches(house[row].may, relative(path)) {
				t.Errorf("%s imports %s, but %s", name, relative(path), house[row].reason)
			}
		}
	}
}

func TestImports_NeverReach(t *testing.T) {
	ours := load(t)
	for _, b := range bans {
		p, ok := ours[b.from]
		if !ok {
			t.Errorf("there is no package %s any more: remove its row", b.from)
			continue
		}
		for path, chain := range reach(p) {
			name := path
			if isOurs(path) {
				name = relative(path)
			}
			if anyMatches(b.never, name) {
				t.Errorf("%s reaches %s (%s), but %s", b.from, name, strings.Join(chain, " > "), b.reason)
			}
		}
	}
}

// reach returns every package that p imports, near or far, with one way there.
// What the standard library needs itself is its own affair.
func reach(p *packages.Package) map[string][]string {
	found := map[string][]string{}
	var walk func(p *packages.Package, chain []string)
	walk = func(p *packages.Package, chain []string) {
		for _, path := range slices.Sorted(maps.Keys(p.Imports)) {
			if _, seen := found[path]; seen {
				continue
			}
			way := append(slices.Clone(chain), path)
			found[path] = way
			if p.Imports[path].Module != nil {
				walk(p.Imports[path], way)
			}
		}
	}
	walk(p, []string{p.PkgPath})
	return found
}

func TestImports_RootIsStandardLibraryOnly(t *testing.T) {
	for path, imported := range load(t)["."].Imports {
		if imported.Module != nil {
			t.Errorf("the root package imports %s, but whoever imports the vocabulary must get nothing else", path)
		}
	}
}

func TestImports_OnlyServerReachesTheStore(t *testing.T) {
	for name, p := range load(t) {
		if _, imports := p.Imports[module+"/registry/store"]; imports && name != "server" {
			t.Errorf("%s imports registry/store, but only server chooses what keeps the state", name)
		}
	}
}
