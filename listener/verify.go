package listener

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

var errNoVerifier = Forbidden("no_verifier", "want at least one verifier")

// AllOf lets an event pass if every verifier does, and otherwise returns the first error. Without
// verifiers it refuses every event.
func AllOf(verifiers ...core.Verifier) core.Verifier { return allOf(slices.Clone(verifiers)) }

type allOf []core.Verifier

// Verify implements [core.Verifier].
func (all allOf) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if len(all) == 0 {
		return errNoVerifier
	}
	for _, verifier := range all {
		if err := verifier.Verify(ctx, peer, event); err != nil {
			return err
		}
	}
	return nil
}

// Validate refuses verifiers that are nil.
func (all allOf) Validate() error { return validateAll(all) }

// ForRequest returns the verifier for one request (see [New]).
func (all allOf) ForRequest() core.Verifier { return allOf(allForRequest(all)) }

// AnyOf lets an event pass if one verifier does. Otherwise it returns the first error that is no
// refusal, as the answer may become a pass, or else the first refusal. Without verifiers it refuses
// every event.
func AnyOf(verifiers ...core.Verifier) core.Verifier { return anyOf(slices.Clone(verifiers)) }

type anyOf []core.Verifier

// Verify implements [core.Verifier].
func (one anyOf) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	var unknown, refused error
	for _, verifier := range one {
		err := verifier.Verify(ctx, peer, event)
		switch {
		case err == nil:
			return nil
		case isRefusal(err):
			refused = cmp.Or(refused, err)
		default:
			unknown = cmp.Or(unknown, err)
		}
	}
	return cmp.Or(unknown, refused, errNoVerifier)
}

// Validate refuses verifiers that are nil.
func (one anyOf) Validate() error { return validateAll(one) }

// ForRequest returns the verifier for one request (see [New]).
func (one anyOf) ForRequest() core.Verifier { return anyOf(allForRequest(one)) }

func allForRequest(verifiers []core.Verifier) []core.Verifier {
	all := make([]core.Verifier, len(verifiers))
	for i, verifier := range verifiers {
		all[i] = intake.ForRequest(verifier)
	}
	return all
}

func isRefusal(err error) bool {
	return errors.Is(err, core.ErrForbidden) || errors.Is(err, core.ErrUnauthenticated)
}

func validateAll(verifiers []core.Verifier) error {
	var invalid []error
	for _, verifier := range verifiers {
		invalid = append(invalid, option.Verifier(verifier))
	}
	return errors.Join(invalid...)
}

// InsecureAllowAll lets every event of every identified peer pass: each runtime can trigger all
// others.
func InsecureAllowAll() core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
}
