package main

import (
	"fmt"
	"html"
	"os"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const recording = "../../docs/demo.svg"

// TestRecording holds that the picture in the README of the repository shows the output of make demo
// in examples/quickstart/README.md, which another test compares with the program. The waits there
// must agree, too.
func TestRecording(t *testing.T) {
	t.Parallel()
	shown := find(t, "(?s)<!-- output: make demo -->\n```\n(.*?)```\n", read(t, "README.md"))
	checkWaits(t, shown)
	want := record("$ make demo", shown)
	if *update {
		lab.NoError(t, os.WriteFile(recording, []byte(want), 0o644))
	}
	if read(t, recording) != want {
		t.Error("docs/demo.svg is behind: go test ./quickstart -run TestRecording -update")
	}
}

// record returns an SVG in which the lines appear one after the other, as in a terminal. With the setting
// for reduced motion, all lines are there immediately.
func record(command, output string) string {
	const lineHeight, charWidth, pause = 20, 8.2, 0.35
	lines := append([]string{command, ""}, strings.Split(strings.TrimSpace(output), "\n")...)
	longest := 0
	for _, line := range lines {
		longest = max(longest, len(line))
	}

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" aria-labelledby="title desc">
  <title id="title">make demo</title>
  <desc id="desc">The output of make demo: real API servers start, an operator and an agent follow, and writes in the
    runtime start reconciles in the control plane. examples/quickstart/README.md has it as text.</desc>
  <style>
    text { font: 13.5px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d6dde6; white-space: pre; }
    .command { fill: #7ee2a8; }
    .effect { fill: #8ec5ff; }
    @media (prefers-reduced-motion: no-preference) {
      text { opacity: 0; animation: appear 0.2s forwards; }
    }
    @keyframes appear { to { opacity: 1; } }
  </style>
  <rect width="100%%" height="100%%" rx="8" fill="#14181f"/>
`, float64(longest)*charWidth+40, (len(lines)+2)*lineHeight)
	for i, line := range lines {
		class := "line"
		switch {
		case i == 0:
			class = "command"
		case strings.Contains(line, "after the commit"):
			class = "effect"
		}
		fmt.Fprintf(&out, `  <text class="%s" x="20" y="%d" style="animation-delay: %.2fs" xml:space="preserve">%s</text>`+"\n",
			class, (i+1)*lineHeight+8, float64(i)*pause, html.EscapeString(line))
	}
	out.WriteString("</svg>\n")
	return out.String()
}
