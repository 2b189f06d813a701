package observability

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestSymptomsAreOneTable fails when the index by symptom on the page of operations is not that of the runbooks.
func TestSymptomsAreOneTable(t *testing.T) {
	index := regexp.MustCompile(`\| you see \| go to \|\n(?:\|.*\n)+`)
	want := index.FindString(read(t, runbooks))
	have := strings.ReplaceAll(index.FindString(read(t, "docs/operations/operations.md")), "(runbooks.md#", "(#")
	if want == "" || have != want {
		t.Errorf("operations.md has the index\n%s\nwant that of runbooks.md:\n%s", have, want)
	}
}

// TestRunbookShell runs the commands of each runbook in a shell, with stubs for what asks a cluster. It fails when the
// shell cannot read them, or when a filter behind a pipe does not understand an output.
func TestRunbookShell(t *testing.T) {
	s := newShell(t)
	_, all, _ := strings.Cut(read(t, runbooks), "\n## Symptoms without an alert\n")
	sections := strings.Split(all, "\n### ")[1:]
	if len(sections) < 50 {
		t.Errorf("%d runbooks, want more", len(sections))
	}
	for _, text := range sections {
		s.run(commandsOf(text))
	}
}

// The two sums of the key files are equal exactly if the key belongs to the certificate.
func TestRunbookOfKeyFiles(t *testing.T) {
	s := newShell(t)
	commands := commandsOf(section(t, runbooks, "### The agent refuses its key files"))
	sums := func() []string { return regexp.MustCompile(`(?m)^[0-9a-f]{64} `).FindAllString(s.run(commands), -1) }
	if have := sums(); len(have) != 2 || have[0] != have[1] {
		t.Errorf("a key of this certificate: the sums are %v, want two equal ones", have)
	}
	s.write("tls.key", string(files(s.ca)["tls.key"]))
	if have := sums(); len(have) != 2 || have[0] == have[1] {
		t.Errorf("a key of another certificate: the sums are %v, want two different ones", have)
	}
}

// The command names each runtime with an agent that does not report the CA.
func TestRunbookOfAForeignCA(t *testing.T) {
	s := newShell(t)
	fingerprint := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(strings.SplitN(
		s.run("openssl x509 -noout -fingerprint -sha256 -in new-ca.crt"), "=", 2)[1]), ":", ""))
	agent := func(cas ...string) string {
		return `{"heartbeat": {"caFingerprints": ["` + strings.Join(cas, `", "`) + `"]}}`
	}
	s.write("fleet.json", fmt.Sprintf(`{"leadsSince": "2026-11-21T07:20:12Z", "runtimes": [
		{"runtime": "both", "replicas": [%[1]s, %[1]s]}, {"runtime": "one", "replicas": [%[1]s, %[2]s]},
		{"runtime": "half", "replicas": [%[1]s, {"heartbeat": {}}]}, {"runtime": "unknown", "replicas": [%[1]s, {}]},
		{"runtime": "neither", "replicas": [%[2]s]}, {"runtime": "old", "replicas": [{}]}, {"runtime": "silent"}
	]}`, agent("ab", fingerprint), agent("ab")))
	have := s.run(commandsOf(section(t, runbooks, "#### A CA that we do not rotate")))
	if want := "[\"2026-11-21T07:20:12Z\",7]\none\nhalf\nunknown\nneither\nold\nsilent\n"; have != want {
		t.Errorf("the leader, the number of runtimes, and those without the CA are %q, want %q", have, want)
	}
	s.write("fleet.json", `{"runtimes": []}`)
	have = s.run(commandsOf(section(t, runbooks, "#### A CA that we do not rotate")))
	if want := "[null,0]\n"; have != want {
		t.Errorf("a replica that does not lead: the output is %q, want %q", have, want)
	}
}

// The commands show the issuers of both ends, and the last command trusts only the new CA.
func TestRunbookOfNATS(t *testing.T) {
	s := newShell(t)
	s.write("tls.crt", string(files(s.ca)["tls.crt"])+string(s.ca.PEM)) // The first certificate of a chain counts.
	have := s.run(`command() { echo "$*"; grep -c BEGIN new-ca.crt; }` + "\n" +
		commandsOf(section(t, runbooks, "#### The steps with NATS")))
	want := regexp.MustCompile(`^(issuer=.*\bca\nnotAfter=.*\n){2}nats -s tls://.* --tlsca new-ca.crt .* stream info watch-my-operator\n1\n$`)
	if !want.MatchString(have) {
		t.Errorf("the output is %q, want %v", have, want)
	}
}

// The command names the runtimes with a wrong clock, by how much.
func TestRunbookOfAClock(t *testing.T) {
	s := newShell(t)
	s.write("fleet.json", `{"runtimes": [{"runtime": "right", "replicas": [{}]}, {"runtime": "stale"},
		{"runtime": "behind", "replicas": [{}, {"clockSkew": "-3m0s"}]}]}`)
	have := s.run(commandsOf(section(t, runbooks, "### The clock of a node is wrong")))
	if want := "behind -3m0s\n"; !strings.HasPrefix(have, want) {
		t.Errorf("the output begins with %.100q, want %q", have, want)
	}
	s.write("watchers.json", `{"items": [{"metadata": {"namespace": "a", "name": "new"}},
		{"metadata": {"namespace": "a", "name": "valid"}, "status": {"notBefore": "2026-01-01T00:00:00Z"}},
		{"metadata": {"namespace": "a", "name": "early"}, "status": {"notBefore": "2199-01-01T00:00:00Z"}}]}`)
	have = s.run(commandsOf(section(t, runbooks, "### The clock of a node is wrong")))
	if strings.Count(have, "a early\n") != 1 || strings.Contains(have, "a valid\n") || strings.Contains(have, "a new\n") {
		t.Errorf("the certificates that begin in the future are %q, want one", have)
	}
}

// The writers of the watched objects come first to last, and a Watcher without a status is a line.
func TestRunbooksNameWritersAndNewWatchers(t *testing.T) {
	s := newShell(t)
	s.write("watchers.json", `{"items": [{"metadata": {"name": "new"}},
		{"metadata": {"namespace": "a", "name": "d", "managedFields": [
			{"manager": "operator", "time": "2026-11-29T03:00:02Z"}, {"manager": "kubectl", "time": "2026-11-29T03:00:01Z"}]},
			"status": {"conditions": [{"type": "Ready", "reason": "ManagerMissing", "message": "no label"}]}}]}`)
	have := s.run(commandsOf(section(t, runbooks, "### Events arrive twice, or without end")))
	if want := "2026-11-29T03:00:01Z a/d kubectl\n2026-11-29T03:00:02Z a/d operator\n"; !strings.Contains(have, want) {
		t.Errorf("the writers are in %q, want %q", have, want)
	}
	have = s.run(commandsOf(section(t, runbooks, "### The webhook configuration is empty or absent")))
	want := "new" + strings.Repeat(" null", 3) + "\nd Ready ManagerMissing no label\n"
	if !strings.Contains(have, want) {
		t.Errorf("the Watchers are in %q, want %q", have, want)
	}
}

// TestRunbooksSearchForMessages fails when a command searches a log for a text of level info, or one of several texts,
// that no program writes.
func TestRunbooksSearchForMessages(t *testing.T) {
	var written strings.Builder
	written.WriteString("Reconciler error") // The library controller-runtime logs this message.
	walkReleased(t, func(path string) { written.Write(lab.Must(os.ReadFile(path))) })
	commands := regexp.MustCompile(`logs [^|\n]*\| grep( -e '[^']*')+`).FindAllString(read(t, runbooks), -1)
	texts := 0
	for _, command := range commands {
		for _, text := range regexp.MustCompile(`-e '([^']*)'`).FindAllStringSubmatch(command, -1) {
			texts++
			if !strings.Contains(written.String(), text[1]) {
				t.Errorf("%s: no program writes %q", command, text[1])
			}
		}
	}
	const fewest = 10
	if texts < fewest {
		t.Errorf("%d texts, want at least %d", texts, fewest)
	}
}

// The JSON of the installations has no messages, so other commands print them.
func TestRunbooksPrintTheMessageOfAnInstallation(t *testing.T) {
	s := newShell(t)
	s.write("watchers.json", `{"items": [{"metadata": {"name": "new"}}, {"metadata": {"name": "runtime-1"}, "status": {"conditions": [
		{"status": "True", "reason": "Installed", "message": "the agent answers"},
		{"status": "False", "reason": "InstallationFailed", "message": "the server has asked for credentials"}]}}]}`)
	have := s.run(commandsOf(section(t, runbooks, "### RuntimeWatcherInstallationsFail")))
	want := "runtime-1 InstallationFailed the server has asked for credentials\n"
	if !strings.Contains(have, want) || strings.Contains(have, "the agent answers") {
		t.Errorf("the output of the runbook of failed installations is %q, want the line %q", have, want)
	}
	for _, runbook := range []string{"### RuntimeWatcherInstallationsFail", "### A managed API server reaches no agent"} {
		if have := s.run(commandsOf(section(t, runbooks, runbook))); !strings.Contains(have, failedInstallation) {
			t.Errorf("%s: the output is %q, want the line %q of the log", runbook, have, failedInstallation)
		}
	}
}

// commandsOf returns the commands to copy.
func commandsOf(text string) string {
	var all strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
		all.WriteString(block[1])
	}
	return all.String()
}

// stubs are in the place of the short commands of the runbooks. What they print is in the folder of the shell.
const stubs = `
kcp() { skr "$@"; }
skr() {
	case "$*" in
	*'{.data.tls\.crt}'* | *'{.data.ca\.crt}'*) base64 tls.crt ;;
	*'{.data.tls\.key}'*) base64 tls.key ;;
	*'-o json') cat watchers.json ;;
	*'{.items[-1].metadata.name}'* | *'{.items[0].metadata.name}'*) echo runtime-watcher-0 ;;
	*) cat pages ;;
	esac
}
agentlogs() { cat pages; }
operatorlogs() { cat pages; }
fleet() { cat fleet.json; }
q() { :; }
qskr() { :; }
helm() { :; }
check() { :; }
command() { :; }
curl() { cat pages; }
kill() { :; }
kubectl() { skr "$@"; }
`

const failedInstallation = `Reconciler error {"name": "runtime-1", "error": "dial tcp 192.0.2.1:443: i/o timeout"}`

// shell is a folder in which the commands of the runbooks run.
type shell struct {
	*testing.T

	dir string
	ca  *testpki.CA
}

func newShell(t *testing.T) *shell {
	t.Helper()
	for _, program := range []string{"bash", "jq", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			lab.Missing(t, "needs %s: %v", program, err)
		}
	}
	s := &shell{t, t.TempDir(), lab.Must(testpki.NewCA("ca", testpki.Options{}))}
	written := files(s.ca)
	for _, name := range slices.Sorted(maps.Keys(written)) {
		s.write(name, string(written[name]))
	}
	s.write("new-ca.crt", string(s.ca.PEM))
	s.write("watchers.json", `{"items": [{"spec": {"matchConditions": []}}]}`)
	s.write("fleet.json", `{"runtimes": []}`)
	pages := "Last State: Terminated\nWarning: request refused, too_fast, runtime_unknown, error\n/v3/\nResponse Body\n" +
		"step of the certificates\nwatch is established\ndeployment.apps/skr-webhook\n" + failedInstallation + "\n" +
		"apiserver_admission_webhook_admission_duration_seconds_sum 7\n" +
		"runtime_watcher_agent_admission_duration_seconds_sum 7\n" +
		`apiserver_request_total{code="200",resource="deployments",verb="PUT",version="v1"} 7` + "\n"
	s.write("pages", pages+section(t, "docs/reference/reasons-and-messages.md", "## Log messages"))
	return s
}

func files(ca *testpki.CA) map[string][]byte {
	return testpki.Files(lab.Must(ca.Client("runtime-1", testpki.Options{})), ca)
}

func (s *shell) write(name, text string) {
	s.Helper()
	lab.NoError(s, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// run fails when any command of a pipe fails, such as a grep that finds nothing.
func (s *shell) run(commands string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), "bash", "-euo", "pipefail", "-c", stubs+commands)
	cmd.Dir = s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Errorf("%s\n%v\n%.2000s", commands, err, out)
	}
	return string(out)
}
