package coretest

import (
	"errors"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Cases without a verdict that a fault could change prove nothing.
func TestCasesThatProveTooLittle(t *testing.T) {
	t.Parallel()
	passes, cold := VerifierCase{}, VerifierCase{Want: core.ErrNotReady}
	refused, other := VerifierCase{Want: core.ErrForbidden}, VerifierCase{Want: errors.New("other")}
	for name, tt := range map[string]struct {
		cases []VerifierCase
		fault string
	}{
		"none":                  {nil, "no cases"},
		"all pass":              {[]VerifierCase{passes, passes}, "want a case that passes and one that is refused"},
		"all refused":           {[]VerifierCase{refused, refused}, "want a case that passes and one that is refused"},
		"some cold, no pass":    {[]VerifierCase{refused, cold}, "want a case that passes and one that is refused"},
		"another error":         {[]VerifierCase{passes, refused, other}, "Want is none of"},
		"one of each":           {[]VerifierCase{passes, refused, cold}, ""},
		"passing and cold":      {[]VerifierCase{passes, cold}, ""},
		"a cold verifier alone": {[]VerifierCase{cold}, ""},
	} {
		if got := faultOf(tt.cases); !strings.Contains(got, tt.fault) || (got == "") != (tt.fault == "") {
			t.Errorf("%s: fault %q, want %q", name, got, tt.fault)
		}
	}
}
