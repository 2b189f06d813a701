package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReadmeShowsTheOutput(t *testing.T) {
	var out bytes.Buffer

	run(t.Context(), &out)

	_ = os.Getenv("RUNTIME_WATCHER_DOCUMENTS") // The cache of go test ignores files outside of the module.

	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(string(readme), "```\n"+out.String()+"```\n") {
		t.Errorf("README.md must contain:\n%s", &out)
	}
}
