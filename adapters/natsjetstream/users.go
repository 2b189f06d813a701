package natsjetstream

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// User is a client of a NATS server with "verify_and_map", and the subjects that it may use.
type User struct {
	// Name is a SAN of the client's certificate: the registered domain of a runtime.
	Name               string
	Publish, Subscribe []string
}

// reservedRuntime would get the answers to operators.
const reservedRuntime core.RuntimeID = "operator"

var (
	errReserved = errors.New("natsjetstream: the name \"operator\" is reserved")
	errName     = errors.New("natsjetstream: the name of a user is no SAN")
	errTwice    = errors.New("natsjetstream: two users have one name")
)

// RuntimeUser returns the user of a runtime with a registered domain. It may publish under its own
// name, and confirm refusals of its own batches, also through a leaf node.
func RuntimeUser(runtime core.RuntimeID, domain string, managers ...core.Manager) User {
	u := User{Name: domain, Subscribe: []string{InboxPrefix(runtime) + ".>"}}
	for _, manager := range managers {
		u.Publish = append(u.Publish, Subject(manager, runtime), confirmations(operatorInbox(manager), runtime)+".*")
	}
	return u
}

// OperatorUser returns the user of the operator of a manager. It may create and change the stream
// of the manager, and read nothing of others.
func OperatorUser(manager core.Manager, san string) User {
	stream := streamName(manager)
	return User{
		Name: san,
		Publish: []string{
			"$JS.API.STREAM.INFO." + stream, "$JS.API.STREAM.CREATE." + stream, "$JS.API.STREAM.UPDATE." + stream,
			"$JS.API.CONSUMER.*." + stream + ".>", "$JS.API.CONSUMER.MSG.NEXT." + stream + ".>",
			"$JS.ACK." + stream + ".>", inboxRoot + ".>",
		},
		Subscribe: []string{operatorInbox(manager) + ".>"},
	}
}

// operatorInbox is the prefix of the subjects on which the operator of a manager gets answers.
func operatorInbox(manager core.Manager) string {
	return inboxRoot + "." + string(reservedRuntime) + "." + string(manager)
}

// confirmations is the prefix of the subjects on which a runtime confirms refusals.
func confirmations(inbox string, runtime core.RuntimeID) string {
	return inbox + ".refused." + token(runtime)
}

// Authorization returns the block "authorization" of the configuration of a NATS server, to be
// included there. The error names each user with a wrong or repeated name, or with the subjects of
// a reserved name.
func Authorization(users ...User) ([]byte, error) {
	var text strings.Builder
	text.WriteString("authorization {\n  users: [\n")
	seen, wrong := map[string]bool{}, []error(nil)
	for _, u := range users {
		if err := u.validate(seen[u.Name]); err != nil {
			wrong = append(wrong, fmt.Errorf("%w: %.253q", err, u.Name))
		}
		seen[u.Name] = true
		fmt.Fprintf(&text, "    { user: %q, permissions: {\n      publish: { allow: [\n        %s\n      ] }\n"+
			"      subscribe: { allow: [%s] }\n    } }\n",
			u.Name, quoted(u.Publish, ",\n        "), quoted(u.Subscribe, ", "))
	}
	text.WriteString("  ]\n}\n")
	return []byte(text.String()), errors.Join(wrong...)
}

func (u User) validate(twice bool) error {
	switch {
	case twice:
		return errTwice
	case u.Name == "", strings.ContainsFunc(u.Name, isForeign):
		return errName
	case slices.Contains(u.Subscribe, InboxPrefix(reservedRuntime)+".>"):
		return errReserved
	default:
		return nil
	}
}

// isForeign reports whether a SAN has no such character, or the configuration another use for it.
func isForeign(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

func quoted(subjects []string, between string) string {
	all := make([]string, len(subjects))
	for i, subject := range subjects {
		all[i] = `"` + subject + `"`
	}
	return strings.Join(all, between)
}
