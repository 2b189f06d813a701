package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// row is a line of the table: one module, or the sum of several.
type row struct {
	measure.Lines

	title     string
	exported  int
	topLevel  int
	unused    int
	testsOnly int
}

func rowOf(tree *measure.Tree, module string) row {
	return row{
		Lines:     tree.Lines(module),
		title:     module,
		exported:  len(tree.Exported(module)),
		topLevel:  len(tree.TopLevel(module)),
		unused:    len(tree.Unused(module)),
		testsOnly: len(tree.UsedByTests(module)),
	}
}

func (r *row) add(other row) {
	r.Add(other.Lines)
	r.exported += other.exported
	r.topLevel += other.topLevel
	r.unused += other.unused
	r.testsOnly += other.testsOnly
}

func (r *row) String() string {
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f\t%.1f %%\t%d\t%.1f %%\t\n", r.title,
		r.exported, r.topLevel, r.unused, r.testsOnly, r.Total, r.Quantile(0.5), r.Quantile(0.9),
		share(r.Comment, r.Code), 100*share(r.Blank, r.Total), r.Long, 100*share(r.Long, r.Total-r.Blank))
}

func share(part, whole int) float64 {
	return float64(part) / float64(max(1, whole))
}

// headings are the titles of the columns, in two lines.
var headings = [][]string{
	{"module", "exported", "top", "no", "tests", "lines", "body", "body", "comment", "blank", "> 120", "> 120", "\n"},
	{"", "names", "level", "user", "only", "", "median", "p90", "/ code", "lines", "lines", "share", "\n"},
}

const legend = `
exported names: with methods of exported types, without fields, main packages and internal packages
no user: exported top-level names that no other folder of the repository uses; tests only: only tests do
body: lines of a function from its opening to its closing brace; > 120 share: of the lines that are not blank
released: the modules that users import; none of them is below examples/, test/ or tools/
`

func printTable(tree *measure.Tree, root string, modules []string, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, heading := range headings {
		fmt.Fprint(table, strings.Join(heading, "\t"))
	}
	released, untested, all := row{title: "released"}, row{title: "all but test/"}, row{title: "all"}
	for _, module := range modules {
		r := rowOf(tree, module)
		fmt.Fprint(table, r.String())
		all.add(r)
		if measure.Released(module) {
			released.add(r)
		}
		if !strings.HasPrefix(module+"/", "test/") {
			untested.add(r)
		}
	}
	fmt.Fprint(table, released.String(), untested.String(), all.String())
	if err := table.Flush(); err != nil {
		return err
	}
	words, err := wordsOf(filepath.Join(root, "README.md"))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nREADME.md: %d words, test/ and bench/: %d lines of Go with their tests\n%s",
		words, tree.AllLines("test")+tree.AllLines("bench"), legend)
	return err
}

func wordsOf(name string) (int, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return len(strings.Fields(string(text))), err
}
