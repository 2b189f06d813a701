package natsjetstream

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	subjectRoot = "watch"
	inboxRoot   = "_INBOX"
)

// Subject returns the subject under which a runtime publishes to a manager. A NATS server must
// allow a runtime to publish to its own subjects only. The manager must come from
// [core.ParseManager]; "*" stands for all managers in a permission.
func Subject(manager core.Manager, runtime core.RuntimeID) string {
	return subjectRoot + "." + string(manager) + "." + token(runtime)
}

// InboxPrefix returns the prefix of the subjects on which a runtime gets answers. A NATS server
// must allow a runtime to subscribe to its own ones only, as InboxPrefix(runtime) + ".>".
func InboxPrefix(runtime core.RuntimeID) string { return inboxRoot + "." + token(runtime) }

// token returns the runtime as one token of a subject. A '%' starts an escaped byte, as in a URL.
func token(runtime core.RuntimeID) string { return leftByURLs.Replace(url.PathEscape(string(runtime))) }

// leftByURLs escapes characters that PathEscape leaves, and that have a meaning in subjects.
var leftByURLs = strings.NewReplacer(".", "%2E", "*", "%2A", ">", "%3E")

func parseSubject(subject string) (core.RuntimeID, error) {
	parts := strings.Split(subject, ".")
	const tokens = 3
	if len(parts) != tokens || parts[0] != subjectRoot {
		return "", fmt.Errorf("subject is %.80q, want %s.<manager>.<runtime>", subject, subjectRoot)
	}
	id, err := url.PathUnescape(parts[2])
	// Two spellings of one name must not be two senders.
	if err != nil || token(core.RuntimeID(id)) != parts[2] {
		return "", fmt.Errorf("subject %.80q names no runtime", subject)
	}
	if err := option.RuntimeName(id); err != nil {
		return "", fmt.Errorf("subject %.80q: %w", subject, err)
	}
	if core.RuntimeID(id) == reservedRuntime {
		return "", errReserved
	}
	return core.RuntimeID(id), nil
}
