package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	if err := run([]string{"-group=fleet.example.com"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "name: watchers.fleet.example.com\n") {
		t.Errorf("printed\n%.500s", &out)
	}

	for _, args := range [][]string{{"fleet.example.com"}, {"-group=fleet"}, {"-unknown"}} {
		if err := run(args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}

	if err := run([]string{"-h"}, io.Discard, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}
