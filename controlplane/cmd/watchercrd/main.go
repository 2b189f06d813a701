// Command watchercrd prints the custom resource definition of Watcher with the names of an
// operator. It needs no cluster:
//
//	watchercrd -group=fleet.example.com | kubectl apply --server-side -f -
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/crd"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	var n names.Names
	flags := flag.NewFlagSet("watchercrd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&n.Group, "group", "", "API `group` of the operator (default operator.kyma-project.io)")
	flags.StringVar(&n.Kind, "kind", "", "`kind` of the custom resource (default Watcher)")
	flags.StringVar(&n.Plural, "plural", "", "`name` of the custom resource in URLs (default: that of the kind)")
	flags.StringVar(&n.Prefix, "prefix", "", "`domain` of labels and annotations (default: the group)")
	flags.StringVar(&n.WebhookDomain, "webhook-domain", "",
		"`domain` of the names of webhooks (default: that of the group)")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%.64q: want flags only", flags.Arg(0))
	}

	definition, err := crd.Watchers(n)
	if err != nil {
		return err
	}

	_, err = stdout.Write(definition)
	return err
}
