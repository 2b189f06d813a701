package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Patience is the limit for a wait on an API server, a controller or a process, also on a busy machine.
const Patience = 5 * time.Minute

// Same wants two values to be equal, where nil equals empty. The text says what they are.
func Same(t testing.TB, what string, want, have any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, have, append(opts, cmpopts.EquateEmpty())...); diff != "" {
		t.Errorf("%s (-want +have):\n%s", what, diff)
	}
}

// Says wants each part in a text.
func Says(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: want %q in\n%s", what, part, text)
		}
	}
}

// Fails wants an error with each part in its text.
func Fails(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, parts)
		return
	}
	Says(t, what, err.Error(), parts...)
}

// Stored reads an object, and returns it.
func Stored[T client.Object](t testing.TB, c client.Reader, key client.ObjectKey, object T) T {
	t.Helper()
	NoError(t, c.Get(t.Context(), key, object))
	return object
}

// Change reads an object and writes it, until no other writer has written it meanwhile.
func Change[T client.Object](t testing.TB, c client.Reader, object T, write func(T) error) {
	t.Helper()
	Eventually(t, Patience, fmt.Sprintf("%T %s can be changed", object, object.GetName()), func() bool {
		fresh, _ := object.DeepCopyObject().(T) // What was read before must not stay in it.
		return write(Stored(t, c, client.ObjectKeyFromObject(object), fresh)) == nil
	})
}
