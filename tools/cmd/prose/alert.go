package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// alert is one place at which a rule is broken.
type alert struct {
	file    string
	line    int
	rule    string
	message string
}

func (a alert) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", a.file, a.line, a.rule, a.message)
}

func sortAlerts(alerts []alert) {
	slices.SortStableFunc(alerts, func(a, b alert) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
}

// runVale runs vale with the configuration .vale.ini of the repository and no other one.
func runVale(ctx context.Context, vale string, files []string) ([]alert, error) {
	args := append([]string{"--no-global", "--config=.vale.ini", "--no-exit", "--output=JSON", "--"}, files...)
	out, err := exec.CommandContext(ctx, vale, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("vale: %w\n%s%s", err, out, exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	return parseVale(out)
}

func parseVale(out []byte) ([]alert, error) {
	var found map[string][]struct {
		Check, Message string
		Line           int
	}
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("output of vale: %w", err)
	}
	var alerts []alert
	for file, some := range found {
		for _, a := range some {
			alerts = append(alerts, alert{filepath.ToSlash(file), a.Line, a.Check, a.Message})
		}
	}
	return alerts, nil
}

// maxComment is the number of columns of a line that holds nothing but a comment. Vale has no rule
// for it, because it parses comments as Markdown.
const maxComment = 100

// sentence matches a comment of several words. A URL and a directive cannot be broken into lines.
var sentence = regexp.MustCompile(`^\s*// .*\S\s\S`)

func wideComments(file string) ([]alert, error) {
	if !strings.HasSuffix(file, ".go") {
		return nil, nil
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var alerts []alert
	number := 0
	for line := range strings.Lines(string(source)) {
		number++
		line = strings.TrimRight(line, "\n")
		if measure.Columns(line) > maxComment && sentence.MatchString(line) && !strings.Contains(line, "// +") {
			message := fmt.Sprintf("a comment beyond column %d", maxComment)
			alerts = append(alerts, alert{file, number, "Plain.Columns", message})
		}
	}
	return alerts, nil
}
