// Command count prints a table of numbers about the code: per module and in total, for code that is
// neither a test nor generated.
//
// It runs at the root of the repository, with the folders of all modules as arguments: make count.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

func main() {
	err := run(os.Args[1:], ".", os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

func run(args []string, root string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("count", flag.ContinueOnError)
	flags.SetOutput(stderr)
	update := flags.Bool("update", false, "write the number of exported names of each module to "+measure.ExportedFile)
	names := flags.Bool("names", false, "list exported names without a user outside their package instead")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("no modules given: run it with make count")
	}
	tree, err := measure.Load(os.DirFS(root), flags.Args())
	switch {
	case err != nil:
		return err
	case *update:
		return writeExported(tree, root)
	case *names:
		return printNames(tree, flags.Args(), stdout)
	}
	return printTable(tree, root, flags.Args(), stdout)
}

func writeExported(tree *measure.Tree, root string) error {
	return os.WriteFile(root+"/"+measure.ExportedFile, []byte(tree.ExportedCounts()), 0o644)
}

// printNames lists the names that could be unexported, those that only tests use last.
func printNames(tree *measure.Tree, modules []string, out io.Writer) error {
	for _, list := range []struct {
		users string
		of    func(string) []string
	}{{"nothing", tree.Unused}, {"tests", tree.UsedByTests}} {
		for _, module := range modules {
			for _, name := range list.of(module) {
				if _, err := fmt.Fprintf(out, "%s: used by %s outside its package\n", name, list.users); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
