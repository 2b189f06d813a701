// Command release makes one commit, and a tag for each released module. Run it with make release.
// It works in a scratch clone, checks the result there, and fetches the tags into this repository
// at the end. It never contacts a remote, and changes neither a branch nor the working tree.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

func main() { os.Exit(command.Run("release", run)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("C", ".", "`folder` of the repository")
	version := flags.String("version", "", "`version` of the stable modules, such as v0.1.0")
	contrib := flags.String("contrib", "",
		"`version` of the modules of the group contrib, by default that of the stable ones while it is v0")
	apidiff := flags.String("apidiff", "", "`path` of the program apidiff")
	dry := flags.Bool("dry-run", false, "check all, and do not fetch the tags into this repository")

	if err := flags.Parse(args); err != nil {
		return err
	}

	scratch, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}

	r := &release{
		out: stdout, versions: modules.Versions{Stable: *version, Contrib: *contrib},
		apidiff: *apidiff, scratch: scratch,
	}
	if r.root, err = filepath.Abs(*root); err == nil {
		err = r.run(ctx, *dry)
	}

	return errors.Join(err, r.forget(context.WithoutCancel(ctx)), os.RemoveAll(scratch))
}
