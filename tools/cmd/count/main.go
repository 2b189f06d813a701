// Command count prints how many exported names each released module has. Run it with make count.
// With -names, it lists the names without a user outside their package. With -check, it compares
// the numbers with the agreed numbers, so that a new name is a decision.
//
// It runs at the root of the repository, with the folders of all modules as arguments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// agreedFile holds the agreed numbers.
const agreedFile = "tools/exported.txt"

func main() { os.Exit(command.Run("count", run)) }

func run(_ context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("count", flag.ContinueOnError)
	flags.SetOutput(stderr)
	update := flags.Bool("update", false, "write the numbers to "+agreedFile)
	check := flags.Bool("check", false, "compare the numbers with "+agreedFile)
	names := flags.Bool("names", false, "list exported names without a user outside their package instead")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("no modules given: run it with make count")
	}

	tree, err := load(os.DirFS("."), flags.Args())
	if err != nil {
		return err
	}

	switch counts := tree.counts(); {
	case *names:
		return tree.printUnused(stdout)
	case *update:
		return os.WriteFile(agreedFile, []byte(counts), 0o644)
	case *check:
		return compare(counts)
	default:
		_, err = io.WriteString(stdout, counts)
		return err
	}
}

// counts returns a line "<number> <folder>" for each released module.
func (t *tree) counts() string {
	var text strings.Builder
	for _, module := range t.modules {
		if modules.Released(module) {
			fmt.Fprintf(&text, "%4d %s\n", len(t.exported(module)), module)
		}
	}
	return text.String()
}

func compare(counts string) error {
	agreed, err := os.ReadFile(agreedFile)
	if err != nil {
		return err
	}
	return errors.Join(missing(counts, string(agreed), "counted"), missing(string(agreed), counts, "agreed"))
}

// missing returns an error for each line of a text that the other does not have.
func missing(text, other, word string) error {
	var errs []error
	lines := slices.Collect(strings.Lines(other))

	for line := range strings.Lines(text) {
		if !slices.Contains(lines, line) {
			errs = append(errs, fmt.Errorf("%s: %s", word, strings.TrimSpace(line)))
		}
	}
	return errors.Join(errs...)
}

// printUnused lists the top-level names that could be unexported, those that only tests use last.
func (t *tree) printUnused(out io.Writer) error {
	for _, users := range []users{nothing, tests} {
		for _, module := range t.modules {
			for _, name := range t.exported(module) {
				if strings.Count(name[strings.LastIndex(name, "/")+1:], ".") > 1 || t.used[name] != users {
					continue
				}
				if _, err := fmt.Fprintf(out, "%s: used by %s outside its package\n", name, users); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
