package reasons_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// A deadline has a text for people, and still is a deadline for programs.
func TestPlain(t *testing.T) {
	late := fmt.Errorf("dial kcp:443: %w", context.DeadlineExceeded)
	plain := reasons.Plain(late)
	if got := plain.Error(); got != "dial kcp:443: no answer in time" {
		t.Errorf("text %q", got)
	}
	if !errors.Is(plain, context.DeadlineExceeded) || !errors.Is(plain, late) {
		t.Error("the error does not wrap the first one")
	}

	for _, other := range []error{nil, io.EOF} {
		if got := reasons.Plain(other); got != other { //nolint:errorlint // The same one is wanted.
			t.Errorf("%v became %v", other, got)
		}
	}
}
