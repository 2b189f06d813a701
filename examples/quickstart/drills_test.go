package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// drill is a row of the table in docs/operations/drills.md, with its commands.
type drill struct {
	number, state, reason, seconds, message string
	breaks, mends                           string
}

func drills(t *testing.T) (all []drill) {
	t.Helper()
	const drillRows = 10
	text := read(t, "../../docs/operations/drills.md")
	row := regexp.MustCompile("(?m)^\\| \\[(\\d+)\\].* \\| (\\w+)(?: `(\\w+)`)? \\| (\\d+) s \\| `(.*)` \\| " +
		`\[\w+\]\(runbooks.md#\w+\) \|$`)
	for _, found := range row.FindAllStringSubmatch(text, -1) {
		_, section, _ := strings.Cut(text, "\n## "+found[1]+". ")
		section, _, _ = strings.Cut(section, "\n## ")
		blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1)
		if len(blocks) == 0 {
			t.Fatalf("drill %s has no commands", found[1])
		}
		d := drill{
			number: found[1], state: found[2], reason: found[3], seconds: found[4], message: found[5], breaks: blocks[0][1],
		}
		if len(blocks) > 1 {
			d.mends = blocks[1][1]
		}
		all = append(all, d)
	}
	if len(all) != drillRows {
		t.Fatalf("%d drills in the table, want %d", len(all), drillRows)
	}
	return all
}

var allDrills = flag.Bool("all-drills", false, "play each drill, not the first six only")

// ground is the demo with --serve.
type ground struct {
	*testing.T

	dir string
}

// TestDrills runs the commands of the document, and waits for what the page and the logs say. The
// times are for the document, and no verdict. At the end the demo is killed, and leaves no process.
func TestDrills(t *testing.T) {
	t.Parallel() // It waits most of the time.
	const ofEachRun = 6
	all := drills(t)
	if !*allDrills {
		all = all[:ofEachRun]
	}
	p := start(t, nil, "--serve", "--port=0")
	p.readUntil(t, serving)
	printed := p.text.String()
	g := ground{t, filepath.Dir(find(t, `(?m)^  \. (\S+/env)$`, printed))}
	g.await("fresh", "")
	for _, d := range all {
		operator := g.log("quickstart.log")
		agent := g.log("agent.log")
		began := time.Now()
		g.sh(d.breaks)
		g.await(d.state, d.reason)
		found := time.Since(began)
		g.sh(d.mends)
		began = time.Now()
		g.await("fresh", "")
		t.Logf("drill %s: %s %s after %.0f s (table: %s s), fresh after %.0f s",
			d.number, d.state, d.reason, found.Seconds(), d.seconds, time.Since(began).Seconds())
		lines := strings.TrimPrefix(g.log("quickstart.log"), operator) + strings.TrimPrefix(g.log("agent.log"), agent)
		if !strings.Contains(lines, d.message) {
			t.Errorf("drill %s: no line %q in\n%s", d.number, d.message, lines)
		}
	}
	if len(p.children(t)) == 0 {
		t.Error("no child processes, want API servers and agents")
	}
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	p.checkNothingLeft(t, time.Minute)
}

// await waits until the page shows runtime-1 in a state, and runtime-2 as fresh.
func (g ground) await(state, reason string) {
	g.Helper()
	const patience = 5 * time.Minute // The machine may be busy with other tests.
	want := "runtime-1 " + state + " " + reason + ", runtime-2 fresh , "
	have := ""
	tick := time.NewTicker(100 * time.Millisecond)
	end := time.After(patience)
	defer tick.Stop()
	for have != want {
		select {
		case <-tick.C:
			have = g.states()
		case <-end:
			g.Fatalf("the page shows %q, want %q; the log of the operator:\n%s", have, want, g.log("quickstart.log"))
		}
	}
}

func (g ground) states() string {
	g.Helper()
	var states strings.Builder
	for _, runtime := range []string{"runtime-1", "runtime-2"} { // As in the runbooks.
		var view struct {
			Runtimes []fleet.Status `json:"runtimes"`
		}
		lab.NoError(g, json.Unmarshal(g.sh("fleet 'fleet?brief=true&runtime="+runtime+"'"), &view))
		for _, s := range view.Runtimes {
			fmt.Fprintf(&states, "%s %s %s, ", s.Runtime, s.State, s.Reason)
		}
	}
	return states.String()
}

// sh runs commands of the document in a shell with the short names.
func (g ground) sh(commands string) (output []byte) {
	g.Helper()
	shell := exec.CommandContext(g.Context(), "sh", "-euc", ". "+filepath.Join(g.dir, "env")+"\n"+commands)
	output, err := shell.CombinedOutput()
	if err != nil {
		g.Fatalf("%s: %v\n%s", commands, err, output)
	}
	return output
}

func (g ground) log(name string) string { return read(g.T, filepath.Join(g.dir, "logs", name)) }
