// Command controlplane-assets builds kube-apiserver and etcd, if they are not there yet, and prints
// the directory that holds them. Progress goes to standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "controlplane-assets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts := apiserver.AssetsOptions{Progress: stderr}
	flags := flag.NewFlagSet("controlplane-assets", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.Dir, "dir", "",
		"keep the binaries under this `directory` (default: bin/controlplane in the repository)")
	flags.BoolVar(&opts.Kubectl, "kubectl", false, "build kubectl, too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: only flags are understood", flags.Arg(0))
	}
	dir, err := apiserver.Assets(ctx, opts)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, dir)
	return err
}
