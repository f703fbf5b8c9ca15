package cli

import (
	"io"

	"github.com/spf13/cobra"
)

const contextLong = `Contexts are servers that muster login has kept, each with a key. Commands use the
current one, or that of --context or MUSTER_CONTEXT, unless --server names another server:
a key is never sent to a server that it is not for.`

func (a *app) contextCommand() *cobra.Command {
	c := group("context", "The servers that were logged in to", a.contextListCommand(), a.contextUseCommand(), a.contextRemoveCommand())
	c.Long = contextLong
	return c
}

// contextView is what is shown of a context: never its key.
type contextView struct {
	Name     string `json:"name"`
	Server   string `json:"server"`
	Current  bool   `json:"current"`
	LoggedIn bool   `json:"loggedIn"`
	OwnCA    bool   `json:"ownCa"` // it is verified by certificates that were kept
}

func shownContext(c *savedContext, current string) contextView {
	return contextView{Name: c.Name, Server: c.Server, Current: c.Name == current, LoggedIn: c.Key != "", OwnCA: c.CA != ""}
}

func (a *app) contextListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the contexts", Args: exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error { return a.listContexts() },
	}
}

func printContexts(w io.Writer, views []contextView) {
	t := &table{whole: []int{0, 1}}
	t.add("NAME", "SERVER", "CURRENT", "KEY")
	for _, v := range views {
		t.add(v.Name, v.Server, map[bool]string{true: "yes"}[v.Current], map[bool]string{true: "kept", false: "logged out"}[v.LoggedIn])
	}
	t.print(w)
}

func (a *app) contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "use CONTEXT", Short: "Make a context the current one", Args: exactly(1, "the name of a context"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeContext(args[0], func(s *saved, c *savedContext) { s.Current = c.Name })
		},
	}
}

func (a *app) contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove CONTEXT", Short: "Forget a context and its key", Args: exactly(1, "the name of a context"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeContext(args[0], func(s *saved, c *savedContext) { s.remove(c.Name) })
		},
	}
}

const logoutLong = `Forget the key of a context: the current one, unless another is named. The key stays
good: muster key revoke ends it.`

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout [CONTEXT]", Short: "Forget the key of a context", Long: logoutLong, Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := a.load()
			if err != nil {
				return err
			}
			name := s.Current
			switch {
			case len(args) > 0:
				name = args[0]
			case a.context != "":
				name = a.context
			}
			if name == "" {
				return usageError("there is no current context; name one of muster context list")
			}
			return a.changeContext(name, func(_ *saved, c *savedContext) { c.Key = "" })
		},
	}
}

// changeContext changes a context and prints those there are then.
func (a *app) changeContext(name string, change func(*saved, *savedContext)) error {
	if err := a.editContext(name, change); err != nil {
		return err
	}
	return a.listContexts()
}

// editContext changes a context.
func (a *app) editContext(name string, change func(*saved, *savedContext)) error {
	s, err := a.load()
	if err != nil {
		return err
	}
	c, err := s.must(name)
	if err != nil {
		return err
	}
	change(s, c)
	return a.save(s)
}

func (a *app) listContexts() error {
	s, err := a.load()
	if err != nil {
		return err
	}
	views := []contextView{}
	for i := range s.Contexts {
		views = append(views, shownContext(&s.Contexts[i], s.Current))
	}
	return a.write(views, func(w io.Writer) { printContexts(w, views) })
}
