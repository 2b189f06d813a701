// Command prose checks Markdown and comments of Go code with vale. It fails if a path has more
// alerts than its budget in tools/prose-budget.txt.
//
// It runs at the root of the repository: make prose. With paths as arguments it lists the alerts in
// them: make prose ARGS=listener.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// budgetFile is relative to the root of the repository.
const budgetFile = "tools/prose-budget.txt"

func main() { os.Exit(command.Run("prose", run)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	flags.SetOutput(stderr)
	vale := flags.String("vale", "vale", "the `program` to run")
	update := flags.Bool("update", false, "lower the budgets to the number of alerts; never raises one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *update && flags.NArg() > 0 {
		return errors.New("-update looks at the whole repository: give no paths")
	}
	budget, err := readBudget(budgetFile)
	if err != nil {
		return err
	}
	alerts, err := check(ctx, *vale, flags.Args())
	if err != nil {
		return err
	}
	counts := budget.count(alerts)
	if *update {
		return budget.lowered(counts).write(budgetFile)
	}
	return report(stdout, budget, counts, alerts, flags.NArg() > 0)
}

// check returns the alerts in all files below the paths, or in the whole repository without paths.
func check(ctx context.Context, vale string, paths []string) ([]alert, error) {
	files, err := listFiles(ctx, paths)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	alerts, err := runVale(ctx, vale, files)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		wide, err := wideComments(file)
		if err != nil {
			return nil, err
		}
		alerts = append(alerts, wide...)
	}
	sortAlerts(alerts)
	return alerts, nil
}
