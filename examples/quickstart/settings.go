package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// errUsage means that the flags are wrong.
var errUsage = errors.New("wrong settings (see --help)")

// settings are what can be chosen.
type settings struct {
	// serve keeps everything running after the steps.
	serve bool
	// contract is what the agent speaks with the control plane.
	contract contract.Version
}

const usage = `Shows Runtime Watcher at work on this machine, and checks that it does what it should.

usage: make demo [ARGS='--flag ...']   or   go run ./examples/quickstart [--flag ...]

  --serve            go on running afterwards, for you to try it by hand; Ctrl-C ends it
  --contract NAME    wire contract between runtime and control plane: %s (default %s, or KCP_CONTRACT)
  --help             print this
`

// help is what --help prints.
func help() string {
	names := make([]string, 0, len(contract.Versions()))
	for _, version := range contract.Versions() {
		names = append(names, string(version))
	}

	return fmt.Sprintf(usage, strings.Join(names, ", "), contract.V3)
}

// parse returns what args and the environment say, flag.ErrHelp, or an error that wraps errUsage.
func parse(args []string, getenv func(string) string) (settings, error) {
	var s settings

	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&s.serve, "serve", false, "")

	name := flags.String("contract", cmp.Or(getenv("KCP_CONTRACT"), string(contract.V3)), "")

	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return s, flag.ErrHelp
	}

	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("argument %q: want flags only", flags.Arg(0))
	}

	if err == nil {
		s.contract, err = contract.ParseVersion(*name)
	}

	if err != nil {
		return s, fmt.Errorf("%w: %w", errUsage, err)
	}

	return s, nil
}
