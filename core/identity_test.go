package core_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A manager is a URL segment: nothing that a server or a gateway could read as another path is
// accepted.
func TestParseManager(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"a", "0", "kyma", "lifecycle-manager", "a--b", "0a9", strings.Repeat("a", 63)} {
		got, err := core.ParseManager(name)
		if err != nil || string(got) != name {
			t.Errorf("ParseManager(%q) = %q, %v, want it as it is", name, got, err)
		}
	}

	for _, name := range []string{
		"", ".", "..", "a.b", "-", "-a", "a-", "A", "aB", "a_b", "a/b", "/a", "a/", "a%2Fb", "%2e%2e", "a b", " a",
		"a\n", "a\x00", "ä", "a\u0301", "ａ", "١", "a\xff", "a?b", "a#b", "a\\b", "a:b", "*",
		strings.Repeat("a", 64), strings.Repeat("a", 300),
	} {
		got, err := core.ParseManager(name)
		if !errors.Is(err, core.ErrInvalidManager) || got != "" {
			t.Errorf("ParseManager(%q) = %q, %v, want ErrInvalidManager", name, got, err)
		}
	}
}

// Foreign input can neither forge a log line nor flood the log.
func TestParseManagerErrorsAreFitForLogs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a\nlevel=error":        `"a\nlevel=error"`,
		strings.Repeat("x", 64): `"` + strings.Repeat("x", 63) + `"… (64 bytes)`,
		strings.Repeat("ä", 99): `… (198 bytes)`,
	} {
		_, err := core.ParseManager(name)
		switch text := err.Error(); {
		case !strings.HasSuffix(text, want):
			t.Errorf("error is %s, want it to end with %s", text, want)
		case strings.Contains(text, "\n") || len(text) > 400:
			t.Errorf("error has several lines, or %d bytes", len(text))
		}

		if !core.IsPermanent(err) || core.ReasonOf(err) != "invalid_manager" {
			t.Errorf("IsPermanent = %v, Reason = %s, want true, invalid_manager", core.IsPermanent(err), core.ReasonOf(err))
		}
	}
}

func FuzzParseManager(f *testing.F) {
	for _, seed := range []string{"kyma", "", "..", "a-", "ä", strings.Repeat("a", 64)} {
		f.Add(seed)
	}

	const (
		ends   = "abcdefghijklmnopqrstuvwxyz0123456789"
		inside = ends + "-"
	)
	f.Fuzz(func(t *testing.T, name string) {
		label := len(name) >= 1 && len(name) <= 63 && strings.Trim(name, inside) == "" &&
			strings.Contains(ends, name[:1]) && strings.Contains(ends, name[len(name)-1:])
		if _, err := core.ParseManager(name); (err == nil) != label {
			t.Errorf("ParseManager(%q) = %v, but a DNS-1123 label: %v", name, err, label)
		}
	})
}

// Only the name of one namespaced object is accepted, and the error is short.
func TestParseOwner(t *testing.T) {
	t.Parallel()

	for value, want := range map[string]types.NamespacedName{
		"kcp-system/kyma-1":             {Namespace: "kcp-system", Name: "kyma-1"},
		"a/b.c":                         {Namespace: "a", Name: "b.c"},
		"n/" + strings.Repeat("a", 253): {Namespace: "n", Name: strings.Repeat("a", 253)},
	} {
		if got, err := core.ParseOwner(value); err != nil || got != want {
			t.Errorf("ParseOwner(%.40q) = %v, %v, want %v", value, got, err, want)
		}
	}

	for _, value := range []string{
		"", "/", "kyma-1", "/kyma-1", "kcp-system/", "a/b/c", "kcp-system/Kyma", "kcp.system/kyma", "kcp system/kyma",
		"a/b..c", "a/.b", "a/b.", "a/b.-c", "n/" + strings.Repeat("a", 254), strings.Repeat("n", 64) + "/a",
		"kcp-system/kyma\n", "kcp-system/" + strings.Repeat("x", 1<<20),
	} {
		got, err := core.ParseOwner(value)
		switch {
		case !errors.Is(err, core.ErrInvalidOwner) || got != types.NamespacedName{}:
			t.Errorf("ParseOwner(%.40q) = %v, %v, want ErrInvalidOwner", value, got, err)
		case len(err.Error()) > 400 || strings.Contains(err.Error(), "\n"):
			t.Errorf("ParseOwner(%.40q): error has several lines, or %d bytes", value, len(err.Error()))
		}
	}
}

// The newest state with the annotation names the owner. A malformed annotation is an error, and an
// absent one is not.
func TestChangeOwner(t *testing.T) {
	t.Parallel()

	annotated := func(value string) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{"operator.kyma-project.io/owned-by":%s}}}`, value)
	}
	kyma := types.NamespacedName{Namespace: "kcp", Name: "kyma"}
	tests := map[string]struct {
		before, after string
		want          types.NamespacedName
		err           error
	}{
		"of the new state":        {annotated(`"kcp/old"`), annotated(`"kcp/kyma"`), kyma, nil},
		"of a state that lost it": {annotated(`"kcp/kyma"`), `{}`, kyma, nil},
		"of a deleted object":     {annotated(`"kcp/kyma"`), absent, kyma, nil},
		"of a created object":     {absent, annotated(`"kcp/kyma"`), kyma, nil},
		"missing":                 {`{}`, `{}`, types.NamespacedName{}, nil},
		"no object":               {absent, absent, types.NamespacedName{}, nil},
		"no string":               {absent, annotated(`7`), types.NamespacedName{}, nil},
		"no map":                  {absent, `{"metadata":{"annotations":[]}}`, types.NamespacedName{}, nil},
		"malformed":               {absent, annotated(`"kyma"`), types.NamespacedName{}, core.ErrInvalidOwner},
		"empty":                   {absent, annotated(`""`), types.NamespacedName{}, core.ErrInvalidOwner},
	}

	for name, tt := range tests {
		got, err := change(t, update, "", tt.before, tt.after).Owner()
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: Owner = %v, %v, want %v, %v", name, got, err, tt.want, tt.err)
		}
	}
}

func FuzzParseOwner(f *testing.F) {
	for _, seed := range []string{"a/b", "a/b.c", "", "/", "a//b", "A/b", "a/-b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		owner, err := core.ParseOwner(value)
		if err == nil && (owner.String() != value || owner.Namespace == "" || owner.Name == "") {
			t.Errorf("ParseOwner(%q) = %q", value, owner)
		}
	})
}
