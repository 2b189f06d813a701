// Command arrows prints how the files of a package use each other. An arrow leads from a file to
// another file of the same package, if the first file names a declaration of the second file. An
// arrow points up if the second file stands above the first file.
//
// The command orders the files so that as few arrows as possible point up, and prints that order
// from the top, with the arrows up. Its arguments are folders of packages:
//
//	go run ./tools/cmd/arrows core/outbox controlplane/installation
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

func main() { os.Exit(command.Run("arrows", run)) }

func run(_ context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) == 0 {
		return errors.New("no folders of packages given")
	}

	var text strings.Builder
	for _, folder := range args {
		files, err := readFiles(folder)
		if err != nil {
			return err
		}
		order, up, err := files.order()
		if err != nil {
			return fmt.Errorf("%s: %w", folder, err)
		}

		fmt.Fprintf(&text, "%s: %d files, %d arrows, %d up\n", folder, len(files.names), files.count(), up)
		files.describe(&text, order)
	}

	_, err := io.WriteString(stdout, text.String())
	return err
}

// describe writes a line for each file, from the top, with the files above it that it names.
func (f *files) describe(text *strings.Builder, order []int) {
	for rank, file := range order {
		var above []string
		for _, other := range order[:rank] {
			if f.uses[file][other] {
				above = append(above, f.names[other])
			}
		}

		line := "\t" + f.names[file]
		if len(above) > 0 {
			line += " uses " + strings.Join(above, ", ")
		}
		text.WriteString(line + "\n")
	}
}
