package migration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const guide = "docs/platforms/migration.md"

// chapter is what the test does for a section of the guide. Without back, its way back is that of another one.
type chapter struct {
	title         string
	forward, back func(w *world)
	done, returns string
}

func chapters() []chapter {
	return []chapter{
		{
			"1. Image of the agent", (*world).setImage, (*world).returnImage,
			"our image in today's Deployments", "the image of today",
		},
		{
			"2. Listener", (*world).setListener, (*world).returnListener,
			"our listener in the operator, contract v2; the events of a wrong skr-domain wait", "the listener of today",
		},
		{
			"3. Watchers and routes", (*world).setWatchers, (*world).returnWatchers,
			"our definition, Watcher controller and routes; the policy allows contract v3",
			"Watchers, routes and the policy of today",
		},
		{
			"4. Certificates", (*world).setCertificates, (*world).returnCertificates,
			"our certificates, with the imported CA and the gateway's Secret",
			"the gateway's Secret belongs to the operator of today again",
		},
		{
			"5. Agents beside the former ones", (*world).addAgents, (*world).removeAgents,
			"our agents beside those of today, with both webhook configurations, at last in a hibernated runtime",
			"our agents leave, with their certificates and the finalizer",
		},
		{
			"6. Removal of the former agents", (*world).removeFormer, (*world).addFormer,
			"the objects of today are removed from the runtimes; all runtimes are fresh", "agents of today beside ours",
		},
		{"7. CA", (*world).rotate, nil, "a CA of ours replaces that of today, confirmed by every runtime", ""},
		{"8. Cleaning up", (*world).cleanUp, nil, "the certificates of today are removed", ""},
		{title: "Metrics"},
	}
}

// elsewhere has the commands of the guide that TestMigration does not run, by how they begin, and the reason.
var elsewhere = map[string]string{
	"make image":       "builds an image, and nothing here runs one. Its variables are those of deploy/dropin/agent.env",
	"go get":           "asks a registry, and nothing is published",
	"go mod tidy":      "asks a registry. TestPatches compiles with the modules of this repository",
	"cd examples && ":  "this test",
	"openssl s_client": "serverIsLeafOf reads the same certificate",
	"kubectl -n kyma-system logs deploy/skr-webhook": "a node of this test has no logs that kubectl can read",
}

// section is a part of the guide with its shell blocks and the commands in its text. The check is the
// block after the word Check.
type section struct {
	title, text, whole string
	blocks, commands   []string
	check              string
}

var (
	fence   = regexp.MustCompile("(?ms)^```(.*?)\n(.*?)\n```$")
	command = regexp.MustCompile("`((?:kubectl|openssl|make|git|go|cd) [^`]*)`")
	checked = regexp.MustCompile("(?ms)^- \\*\\*Check\\*\\*: [^\n]*\n\n```sh\n(.*?)\n```$")
	row     = regexp.MustCompile(`(?m)^\| \[\d\]\(#([^)]*)\) .*$`)
)

// read returns the sections of a page. The text before the first heading has no title.
func read(page string) (all []section) {
	for text := range strings.SplitSeq(page, "\n## ") {
		title, rest, _ := strings.Cut(text, "\n")
		if len(all) == 0 {
			title = ""
			rest = text
		}
		s := section{title: title, whole: rest, text: fence.ReplaceAllString(rest, "")}
		if found := checked.FindStringSubmatch(rest); found != nil {
			s.check = "sh\n" + found[1]
		}
		for _, block := range fence.FindAllStringSubmatch(rest, -1) {
			s.blocks = append(s.blocks, block[1]+"\n"+block[2])
		}
		for _, found := range command.FindAllStringSubmatch(s.text, -1) {
			s.commands = append(s.commands, found[1])
		}
		all = append(all, s)
	}
	return all
}

// problems compares a page with the chapters: its sections, their order, and what each step must have.
func problems(page string) (all []string) {
	sections := read(page)
	known := chapters()
	rows := row.FindAllStringSubmatch(sections[0].text, -1)
	for i, s := range sections[1:] {
		if i >= len(known) || s.title != known[i].title {
			return append(all, fmt.Sprintf("section %q is unknown or moved", s.title))
		}
		for _, block := range s.blocks {
			if !strings.HasPrefix(block, "sh\n") {
				all = append(all, fmt.Sprintf("section %q has a block that is no shell: %s", s.title, block))
			}
		}
		for _, command := range s.commands {
			if strings.Contains(command, "\n") {
				all = append(all, fmt.Sprintf("section %q has a command on two lines: %s", s.title, command))
			}
		}
		if known[i].forward == nil {
			continue
		}
		anchor := strings.ToLower(strings.NewReplacer(" ", "-", ".", "").Replace(s.title))
		if i >= len(rows) || rows[i][1] != anchor {
			all = append(all, fmt.Sprintf("the table has no row %d for section %q", i+1, s.title))
		}
		final := i+2 >= len(known) || known[i+1].forward == nil
		if s.check == "" || strings.Contains(s.text, "\n- **Back**: ") == final {
			all = append(all, fmt.Sprintf("section %q has no check, no way back, or one too many", s.title))
		}
	}
	if len(sections) != len(known)+1 {
		all = append(all, fmt.Sprintf("%d sections, want %d", len(sections)-1, len(known)))
	}
	return all
}

// TestGuide must be able to fail.
func TestGuide(t *testing.T) {
	page := string(test.Read(t, guide))
	for _, problem := range problems(page) {
		t.Error(problem)
	}
	from, rest, _ := strings.Cut(page, "\n## 4.")
	four, after, _ := strings.Cut(rest, "\n## 5.")
	for what, changed := range map[string]string{
		"a moved step":        from + "\n## 5." + after + "\n## 4." + four,
		"a step that is gone": from + "\n## 5." + after,
		"a new section":       strings.Replace(page, "\n## Metrics", "\n## 9. More\n\n- **Check**: all\n\n## Metrics", 1),
		"no check":            strings.Replace(page, "\n- **Check**", "\n- **Verify**", 1),
		"no way back":         strings.Replace(page, "\n- **Back**", "\n- **Return**", 1),
		"a command in pieces": strings.Replace(page, "`kubectl -n istio-system get", "`kubectl -n istio-system\nget", 1),
		"another language":    strings.Replace(page, "```sh", "```yaml", 1),
		"a row that is gone":  strings.Replace(page, "\n| [3](", "\n| 3(", 1),
	} {
		if changed == page || len(problems(changed)) == 0 {
			t.Errorf("%s is no problem", what)
		}
	}
}

// aloud reads the guide up to a step, and does what it says. The check of a step fails before it.
func (w *world) aloud(last int) {
	w.t.Helper()
	for i, c := range w.chapters[:last] {
		w.open(i + 1)
		if w.run(w.section.check) {
			w.t.Errorf("%s: the check of step %d succeeds before the step:\n%s", guide, i+1, w.last)
		}
		c.forward(w)
		w.mustBlock(w.section.check)
		w.steps.Done("step %d:  %s", i+1, c.done)
	}
}

// backwards does the same for the way back.
func (w *world) backwards() {
	for i, c := range slices.Backward(w.chapters) {
		if c.back != nil {
			w.open(i + 1)
			c.back(w)
			w.steps.Done("back %d:  %s", i+1, c.returns)
		}
	}
}

// open begins to read a section.
func (w *world) open(n int) {
	w.section = w.page[n]
	w.at = 0
}

// inOrder notes that a command of the current section runs, and that none before it follows.
func (w *world) inOrder(command string) {
	w.t.Helper()
	at := strings.Index(w.section.whole, strings.TrimPrefix(command, "sh\n"))
	if at < w.at {
		w.t.Errorf("%s: section %q has a command in another order than the test: %s", guide, w.section.title, command)
	}
	w.at = at
	w.ran[w.section.title+command] = true
}

// find returns the block of the current section with that text.
func (w *world) find(text string) string {
	w.t.Helper()
	for _, block := range w.section.blocks {
		if strings.Contains(block, text) {
			return block
		}
	}
	w.t.Fatalf("section %q has no block with %q", w.section.title, text)
	return ""
}

// block runs the shell block of the current section with that text, with these variables, and reports its success.
func (w *world) block(text string, env ...string) bool {
	w.t.Helper()
	block := w.find(text)
	w.inOrder(block)
	return w.run(block, env...)
}

// run runs a block in a checkout of lifecycle-manager.
func (w *world) run(block string, env ...string) bool {
	w.t.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, "metrics"), w.metrics(), 0o600))
	out, err := w.shell(block, w.plane, env...)
	w.last = fmt.Sprintf("%s\n%v\n%s", block, err, out)
	return err == nil
}

// mustBlock runs a shell block until it succeeds: the machine may be busy, and a block may be repeated.
func (w *world) mustBlock(text string, env ...string) {
	w.t.Helper()
	block := w.find(text)
	w.inOrder(block)
	w.eventually("this succeeds: "+block, func() bool { return w.run(block, env...) })
}

func (w *world) shell(block string, plane *apiserver.ControlPlane, env ...string) (string, error) {
	w.t.Helper()
	assets, err := apiserver.Assets(w.t.Context(), apiserver.AssetsOptions{Kubectl: true})
	w.must(err)
	cmd := exec.CommandContext(w.t.Context(), "sh", "-eu", "-c", strings.TrimPrefix(block, "sh\n"))
	cmd.Dir = w.checkout
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+plane.Kubeconfig, "ASSETS="+assets, "IMAGE="+dropinImage,
		"RUNTIME_WATCHER="+test.Root(), "RUNTIME="+w.members[0].Kubeconfig,
		"GOWORK=off", "GOFLAGS=", "GIT_CEILING_DIRECTORIES="+filepath.Dir(w.checkout),
		"PATH="+strings.Join([]string{w.dir, assets, os.Getenv("PATH")}, ":")), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// kubectl runs a command in the text of the current section.
func (w *world) kubectl(plane *apiserver.ControlPlane, text string) (out string) {
	w.t.Helper()
	text = "kubectl " + text
	if !slices.Contains(w.section.commands, text) {
		w.t.Fatalf("section %q does not say %q", w.section.title, text)
	}
	w.inOrder(text)
	w.eventually(text, func() bool {
		var err error
		out, err = w.shell(text, plane)
		w.last = fmt.Sprintf("%s: %v\n%s", text, err, out)
		return err == nil
	})
	return out
}

// shows wants a command of the current section to print a text.
func shows(w *world, plane *apiserver.ControlPlane, want, command string) {
	w.t.Helper()
	w.eventually("kubectl "+command+" prints "+want, func() bool {
		return strings.Contains(w.kubectl(plane, command), want)
	})
}

// allRan wants each command of the guide to have been run, or to be elsewhere.
func (w *world) allRan() {
	used := map[string]bool{}
	for _, s := range w.page {
		for _, text := range slices.Concat(s.blocks, s.commands) {
			other := false
			for begins := range elsewhere {
				if strings.HasPrefix(strings.TrimPrefix(text, "sh\n"), begins) {
					other = true
					used[begins] = true
				}
			}
			if w.ran[s.title+text] == other {
				w.t.Errorf("%s: section %q has a command that was not run, or both runs and is elsewhere: %s", guide, s.title, text)
			}
		}
	}
	for begins := range elsewhere {
		if !used[begins] {
			w.t.Errorf("%s has no command %q", guide, begins)
		}
	}
}
