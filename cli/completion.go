package cli

import (
	"io"

	"github.com/spf13/cobra"
)

const completionLong = `Print what makes a shell complete muster's commands, flags and values, with the
ids of the nodes and instances that there are now.

    bash   source <(muster completion bash)
           # for every session of everybody:
           muster completion bash >/etc/bash_completion.d/muster
    zsh    muster completion zsh >"${fpath[1]}/_muster"
    fish   muster completion fish >~/.config/fish/completions/muster.fish

It asks the server that MUSTER_SERVER or --server names, for a second at most, and
offers no ids when there is no answer.`

// bashWords replaces a function of the script for bash: the original needs the
// package bash-completion, which small machines don't have. The words are those
// of the line up to the cursor, not split at = and :.
const bashWords = `
__muster_init_completion()
{
    COMPREPLY=()
    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    local line=${COMP_LINE:0:$COMP_POINT}
    read -r -a words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then
        words+=("")
    fi
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=${words[cword - 1]}
}
`

func (a *app) completionCommand() *cobra.Command {
	write := map[string]func(*cobra.Command, io.Writer) error{
		"bash": writeBashCompletion,
		"zsh":  (*cobra.Command).GenZshCompletion,
		"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
	}
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print what makes a shell complete commands and ids", Long: completionLong,
		Args: exactly(1, "bash, zsh or fish"),
		RunE: func(c *cobra.Command, args []string) error {
			f, ok := write[args[0]]
			if !ok {
				return usageError("%s is no shell that is known; give %s", quote(args[0]), listed(shells(), "or"))
			}
			return f(c.Root(), a.std.Out)
		},
	}
}

// shells are those that there is a completion for.
func shells() []string { return []string{"bash", "zsh", "fish"} }

func writeBashCompletion(root *cobra.Command, w io.Writer) error {
	if err := root.GenBashCompletionV2(w, true); err != nil {
		return err
	}
	_, err := io.WriteString(w, bashWords)
	return err
}
