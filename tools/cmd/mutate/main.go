// Command mutate draws random faults in the syntax of a package and puts them into a copy of the
// code. It runs the tests of that package with one fault at a time. Run it with make
// sample-mutants. The same seed draws the same faults from the same sources.
//
// It runs at the root of the repository, with the folder of the package as its argument.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

func main() { os.Exit(command.Run("mutate", run)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 1, "draw these faults")
	n := flags.Int("n", 20, "run the tests with so many faults")
	only := flags.String("run", ".", "run the tests that match")
	through := flags.String("through", "", "a command that runs go and the tests, such as 'nice'")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: mutate [flags] folder of a package")
	}

	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	folder := filepath.Clean(flags.Arg(0))
	all, err := faultsOf(folder)
	if err != nil {
		return err
	}

	t := trial{folder: folder, work: work, only: *only, through: strings.Fields(*through)}
	if err := t.control(ctx); err != nil {
		return err
	}

	fmt.Fprintf(stdout, "%s: %d places, seed %d, the tests take %v\n", folder, len(all), *seed,
		t.took.Round(time.Millisecond))
	dice := rand.New(rand.NewPCG(*seed, 0)) //nolint:gosec // The seed repeats a sample.
	dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	drawn, err := t.compile(ctx, all, *n)
	if err != nil {
		return err
	}

	return t.sample(ctx, drawn, stdout)
}

// sample tries all faults.
func (t *trial) sample(ctx context.Context, drawn []fault, stdout io.Writer) error {
	counts := map[verdict]int{}
	for i := range drawn {
		verdict, err := t.try(ctx, &drawn[i], i+1)
		if err != nil {
			return err
		}

		counts[verdict]++
		fmt.Fprintf(stdout, "%-11s %s\n", verdict, &drawn[i])
	}

	fmt.Fprintf(stdout, "%s: %d found, %d missed, %d timed out, %d not covered; %d of %d found\n", t.folder,
		counts[found], counts[missed], counts[late], counts[uncovered], counts[found], counts[found]+counts[missed])
	return nil
}
