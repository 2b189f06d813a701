package natsjetstream

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	subjectRoot = "watch"
	inboxRoot   = "_INBOX"
)

// streamName is also the prefix of the stream's API subjects.
func streamName(manager core.Manager) string { return subjectRoot + "-" + string(manager) }

// Subject returns the subject under which a runtime publishes to a manager. A NATS server must
// allow a runtime to publish only to its own subjects. The manager must come from
// [core.ParseManager]. In a permission, "*" means all managers.
func Subject(manager core.Manager, runtime core.RuntimeID) string {
	return subjectRoot + "." + string(manager) + "." + token(runtime)
}

// InboxPrefix returns the prefix of the subjects on which a runtime receives answers. A NATS server
// must allow a runtime to subscribe only to its own subjects, with InboxPrefix(runtime) + ".>".
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

// User is a client of a NATS server with "verify_and_map": an agent, an operator, or neither.
type User struct {
	// Name is a SAN of the client's certificate: the registered domain of a runtime.
	Name string
	// Runtime is the runtime of an agent. The agent may send to Managers under its own name and
	// confirm refusals of its own batches, including through a leaf node. Default: no agent.
	Runtime  core.RuntimeID
	Managers []core.Manager
	// Operator is the manager of an operator. The operator may create and change the stream of the
	// manager, but cannot read other streams. Default: no operator.
	Operator core.Manager
	// Publish and Subscribe are further subjects that the client may use. Default: none.
	Publish, Subscribe []string
}

// reservedRuntime would get the answers to operators.
const reservedRuntime core.RuntimeID = "operator"

var (
	errReserved = errors.New("natsjetstream: the name \"operator\" is reserved")
	errName     = errors.New("natsjetstream: the name of a user is not a SAN")
	errRights   = errors.New("natsjetstream: want Managers only with Runtime")
	errTwice    = errors.New("natsjetstream: two users have the same name")
)

// allowedSubjects returns the subjects to which the user may publish and subscribe.
func (u *User) allowedSubjects() (publish, subscribe []string) {
	publish = slices.Clone(u.Publish)
	subscribe = slices.Clone(u.Subscribe)
	if u.Runtime != "" {
		subscribe = append(subscribe, InboxPrefix(u.Runtime)+".>")
	}

	for _, manager := range u.Managers {
		publish = append(publish, Subject(manager, u.Runtime), confirmations(operatorInbox(manager), u.Runtime)+".*")
	}

	if u.Operator != "" {
		stream := streamName(u.Operator)
		publish = append(publish,
			"$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.CREATE."+stream, "$JS.API.STREAM.UPDATE."+stream,
			"$JS.API.CONSUMER.*."+stream+".>", "$JS.API.CONSUMER.MSG.NEXT."+stream+".>",
			"$JS.ACK."+stream+".>", inboxRoot+".>")
		subscribe = append(subscribe, operatorInbox(u.Operator)+".>")
	}

	return publish, subscribe
}

func operatorInbox(manager core.Manager) string {
	return inboxRoot + "." + string(reservedRuntime) + "." + string(manager)
}

// confirmations is the prefix of the subjects on which a runtime confirms refusals.
func confirmations(inbox string, runtime core.RuntimeID) string {
	return inbox + ".refused." + token(runtime)
}

// Authorization returns the block "authorization" for the configuration of a NATS server. It
// refuses invalid and duplicate names, the subjects of a reserved name, and Managers without
// Runtime. The error names each such user.
func Authorization(users ...User) ([]byte, error) {
	var text strings.Builder
	text.WriteString("authorization {\n  users: [\n")
	seen := map[string]bool{}
	var wrong []error

	for _, u := range users {
		if err := u.validate(seen[u.Name]); err != nil {
			wrong = append(wrong, fmt.Errorf("%w: %.253q", err, u.Name))
		}

		seen[u.Name] = true
		publish, subscribe := u.allowedSubjects()
		fmt.Fprintf(&text, "    { user: %q, permissions: {\n      publish: { allow: [\n        %s\n      ] }\n"+
			"      subscribe: { allow: [%s] }\n    } }\n",
			u.Name, quoted(publish, ",\n        "), quoted(subscribe, ", "))
	}

	text.WriteString("  ]\n}\n")
	return []byte(text.String()), errors.Join(wrong...)
}

func (u *User) validate(twice bool) error {
	isRuntimeOnly := u.Runtime != "" && u.Operator == ""

	switch {
	case twice:
		return errTwice
	case u.Name == "", strings.ContainsFunc(u.Name, isForeign):
		return errName
	case u.Runtime == reservedRuntime, slices.Contains(u.Subscribe, InboxPrefix(reservedRuntime)+".>"):
		return errReserved
	case len(u.Managers) > 0 && !isRuntimeOnly:
		return errRights
	default:
		return nil
	}
}

// isForeign reports whether a SAN has no such character, or the configuration another use for it.
func isForeign(r rune) bool {
	isPrintable := r > ' ' && r <= '~'
	return !isPrintable || r == '"' || r == '\\'
}

func quoted(subjects []string, between string) string {
	all := make([]string, len(subjects))
	for i, subject := range subjects {
		all[i] = `"` + subject + `"`
	}
	return strings.Join(all, between)
}
