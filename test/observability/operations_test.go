package observability

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// section returns the part of a document with that heading.
func section(t *testing.T, document, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, document), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", document, heading)
	}
	next := regexp.MustCompile(`\n#{2,` + strconv.Itoa(strings.Count(heading, "#")) + `} `)
	return next.Split(rest, 2)[0]
}

// TestEachReasonHasARow fails when a reason of the fleet has no row in the table of states.
func TestEachReasonHasARow(t *testing.T) {
	states := section(t, "docs/reference/fleet-api.md", "## States")
	for _, condition := range fleet.Conditions() {
		if reason := condition.Reason; reason != "" && !strings.Contains(states, "`"+string(reason)+"`") {
			t.Errorf("reason %q has no row in the section States", reason)
		}
	}
}

// TestRefusalsAndDropsHaveARow fails when a reason of a refused request or of a dropped event has no row with an action.
func TestRefusalsAndDropsHaveARow(t *testing.T) {
	const document = "docs/reference/reasons-and-messages.md"
	known := newVocabulary(t)
	for _, table := range []struct {
		heading string
		reasons []string
	}{
		{"## Reasons of refusals", known.of(listeners+"requests_total", "reason")},
		{"## Reasons of refusals", known.of("", "result")},
		{"## Reasons of dropped events", constants(t, "core/outbox/counts.go", "^Reason")},
	} {
		var first strings.Builder // columns of each row, without its cause and its action
		for line := range strings.Lines(section(t, document, table.heading)) {
			if cells := strings.Split(line, " | "); len(cells) > 2 {
				first.WriteString(strings.Join(cells[:len(cells)-2], " "))
			}
		}
		if len(table.reasons) < 4 {
			t.Errorf("the vocabulary has the reasons %v, want all for %s", table.reasons, table.heading)
		}
		for _, reason := range table.reasons {
			if reason != "" && reason != "ok" && reason != other && !strings.Contains(first.String(), "`"+reason+"`") {
				t.Errorf("reason %q has no row in the section %s of %s", reason, table.heading, document)
			}
		}
	}
}

// TestRefusalsOfSendersHaveAnItem fails when the runbook of refused requests says nothing about a
// reason for which a sender is not the runtime that it claims to be, and when the consumer's row of
// the metrics lacks such a reason.
func TestRefusalsOfSendersHaveAnItem(t *testing.T) {
	pinning := constants(t, "internal/reasons/pinning.go", ".")
	runbook := section(t, "docs/operations/runbooks.md", "### RuntimeWatcherListenerRefuses")
	senders := slices.Concat(
		pinning, constants(t, "listener/refusal.go", "^Reason"), constants(t, "adapters/controllerruntime/domain.go", "^Reason"),
	)
	for _, reason := range senders {
		if !strings.Contains(runbook, "`"+reason+"`") {
			t.Errorf("the runbook RuntimeWatcherListenerRefuses has no item for %q", reason)
		}
	}

	consumer := newVocabulary(t).of(consumers+"messages_total", "reason")
	for _, reason := range pinning {
		// The subject of a message names the runtime, so each message has an identity.
		if reason != string(core.ReasonNoIdentity) && !slices.Contains(consumer, reason) {
			t.Errorf("the reasons of %smessages_total lack %q: see newVocabulary", consumers, reason)
		}
	}
}

// TestLogMessagesAreListed fails when a message of level warn or error has no action, and when a row has no message.
// A row with the sign … covers several messages.
func TestLogMessagesAreListed(t *testing.T) {
	list := section(t, "docs/reference/reasons-and-messages.md", "## Log messages")
	rows := make(map[string]*regexp.Regexp)
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(list, -1) {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(row[1]), "…", ".*")
		rows[row[1]] = regexp.MustCompile("^" + pattern + "$")
	}

	used := map[string]bool{
		// The library controller-runtime logs this message.
		"Reconciler error": true,
		// The listener logs the message with the level of the refusal.
		"request refused": true,
		// The controllers log this message with the level info.
		"cannot watch metadata, so changes wait for the next reconcile": true,
	}
	for _, message := range messages(t) {
		listed := false
		for row, pattern := range rows {
			if pattern.MatchString(message) {
				listed = true
				used[row] = true
			}
		}
		if !listed {
			t.Errorf("the message %q has no row in the section Log messages", message)
		}
	}
	for row := range rows {
		if !used[row] {
			t.Errorf("no program has the message %q", row)
		}
	}
}

const runbooks = "docs/operations/runbooks.md"

// TestRunbooks fails when an alert has no runbook or no severity, or when a runbook of an alert or a symptom
// does not begin with the effect on users, or has less than three commands to copy. A runbook is as long as it must be.
func TestRunbooks(t *testing.T) {
	const fewest = 3 // commands
	known := make(map[string]bool)
	for _, rule := range alerts(t) {
		known[rule.Alert] = true
		if rule.Annotations["runbook_url"] == "" || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
			t.Errorf("%s: want a runbook_url, a severity and a summary", rule.Alert)
		}
		if _, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], runbooks+"#"); !strings.EqualFold(anchor, rule.Alert) {
			t.Errorf("%s has the runbook %q", rule.Alert, anchor)
		}
	}
	shown := 0
	for _, part := range strings.Split(read(t, runbooks), "\n### ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		effect, rest, _ := strings.Cut(text, "\n```sh\n")
		commands, _, _ := strings.Cut(rest, "```")
		n := strings.Count(commands, "\n")
		if strings.TrimSpace(effect) == "" || n < fewest {
			t.Errorf("%s: the effect %q and %d commands, want an effect, and at least %d commands",
				title, effect, n, fewest)
		}
		if known[title] {
			shown++
		} else if strings.HasPrefix(title, "RuntimeWatcher") {
			t.Errorf("%s is no alert", title)
		}
	}
	if shown != len(known) {
		t.Errorf("%d runbooks for %d alerts", shown, len(known))
	}
}

// TestRunbookCommands fails when a command asks Prometheus for what no process has, asks the fleet with an unknown
// parameter, state, reason or problem, or searches a log for what no message has.
func TestRunbookCommands(t *testing.T) {
	exists := newKnown(t)
	text := read(t, runbooks)
	each := func(pattern string, check func(argument string)) {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
		if len(found) < 5 {
			t.Errorf("%d commands match %s, want more", len(found), pattern)
		}
		for _, argument := range found {
			check(argument[1])
		}
	}
	each(`\bq(?:skr)? '([^']*)'`, func(query string) {
		if strings.Contains(query, "runtime_watcher_") {
			exists.check(t, query, query)
		}
	})
	row := regexp.MustCompile("(?m)^\\| `watcher_listener_\\w+` \\| `(.*)` \\|$")
	for _, row := range row.FindAllStringSubmatch(read(t, "docs/platforms/migration.md"), -1) {
		exists.check(t, row[0], strings.ReplaceAll(row[1], `\|`, "|"))
	}
	api := read(t, "docs/reference/fleet-api.md")
	each(`\bfleet '[a-z]+\?([^']*)'`, func(query string) {
		for parameter := range strings.SplitSeq(query, "&") {
			name, value, _ := strings.Cut(parameter, "=")
			fixed := slices.Contains([]string{"state", "reason", "problem"}, name)
			valued := regexp.MustCompile("[`| ]" + value + "[` ]")
			if !regexp.MustCompile("`"+name+"[`=]").MatchString(api) || fixed && !valued.MatchString(api) {
				t.Errorf("fleet %s: fleet-api.md has no %s", query, parameter)
			}
		}
	})
	logged := section(t, "docs/reference/reasons-and-messages.md", "## Log messages")
	each(`logs \| grep (?:-E )?'([^']*)'`, func(pattern string) {
		for part := range strings.SplitSeq(pattern, "|") {
			if !strings.Contains(logged, part) {
				t.Errorf("grep %q: no message has %q", pattern, part)
			}
		}
	})
}

// TestRunbooksQuoteTheCheck fails when the runbooks quote a text that "agent check" does not print.
func TestRunbooksQuoteTheCheck(t *testing.T) {
	test.NoticeSources(t)

	var printed strings.Builder
	for _, file := range lab.Must(filepath.Glob(filepath.Join(test.Root(), "cmd", "agent", "internal", "check", "*.go"))) {
		printed.Write(lab.Must(os.ReadFile(file)))
	}
	quoted := regexp.MustCompile("want \"([^\"]+)\"|`check` says[^`]*`([^`]+)`").FindAllStringSubmatch(read(t, runbooks), -1)
	if len(quoted) < 20 {
		t.Errorf("%d quotations, want more", len(quoted))
	}
	varies := regexp.MustCompile(`…|\b\d+s\b`)
	for _, quotation := range quoted {
		for _, part := range varies.Split(quotation[1]+quotation[2], -1) {
			isOurs := !strings.HasPrefix(part, "remote error: ")
			if isOurs && !strings.Contains(printed.String(), strings.TrimSpace(part)) {
				t.Errorf("the runbooks quote %q, which the check does not print", part)
			}
		}
	}
}

// messages returns the log messages of level warn and error in the released modules.
func messages(t testing.TB) []string {
	t.Helper()

	// These messages are no arguments of a logger.
	all := []string{
		"event refused and given up", "freshness of a runtime changed", "log lines were dropped: the sink was stalled",
	}
	walkReleased(t, func(path string) {
		ofTests := strings.Contains(path, "coretest") || strings.Contains(path, "remotetest")
		if ofTests || strings.Contains(path, "internal/check/") {
			return
		}
		ast.Inspect(lab.Must(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)), func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok && isWarning(call) {
				all = append(all, messageOf(call)...)
			}
			return true
		})
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// walkReleased calls visit with the path of each source file of the released modules, except tests.
func walkReleased(t testing.TB, visit func(path string)) {
	t.Helper()
	test.NoticeSources(t)

	for _, module := range []string{"core", "adapters", "listener", "cmd/agent", "keys", "agent", "internal", "controlplane"} {
		lab.NoError(t, filepath.WalkDir(filepath.Join(test.Root(), module), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				visit(path)
			}
			return err
		}))
	}
}

// isWarning reports whether a call writes a log line of level warn or error.
func isWarning(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch method.Sel.Name {
	case "Warn", "WarnContext", "ErrorContext", "warnLimit":
		return true
	case "Error": // Errors have such a method without arguments, and http has such a function.
		library, named := method.X.(*ast.Ident)
		return len(call.Args) > 0 && (!named || library.Name != "http")
	case "warn", "warnPaced":
		return len(call.Args) > 1
	case "LogAttrs", "note", "noteLine":
		return slices.ContainsFunc(call.Args, isLevel)
	default:
		return false
	}
}

func isLevel(argument ast.Expr) bool {
	level, ok := argument.(*ast.SelectorExpr)
	return ok && (level.Sel.Name == "LevelWarn" || level.Sel.Name == "LevelError")
}

// messageOf returns the first text of a call.
func messageOf(call *ast.CallExpr) []string {
	for _, argument := range call.Args {
		if text, ok := textOf(argument); ok {
			return []string{text}
		}
	}
	return nil
}

func textOf(expression ast.Expr) (string, bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := textOf(e.X)
		right, also := textOf(e.Y)
		return left + right, ok && also
	default:
		return "", false
	}
}
