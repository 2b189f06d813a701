package core_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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
		if !core.IsPermanent(err) || core.Reason(err) != "invalid_manager" {
			t.Errorf("IsPermanent = %v, Reason = %s, want true, invalid_manager", core.IsPermanent(err), core.Reason(err))
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
