package consumer

import (
	"strings"
	"testing"
)

func TestCompareNamesWhatDiffers(t *testing.T) {
	agreed := cost{linked: []string{"core", "apimachinery"}, tests: []string{"cmp"}}
	for name, c := range map[string]struct {
		got  bill
		want string
	}{
		"as agreed":      {bill{set("core", "apimachinery"), set("cmp")}, ""},
		"one more":       {bill{set("core", "apimachinery", "heavy"), set("cmp")}, "modules linked: [apimachinery core heavy], want [apimachinery core]"},
		"one less":       {bill{set("core"), set("cmp")}, "modules linked: [core]"},
		"more for tests": {bill{set("core", "apimachinery"), set("cmp", "heavy")}, "in go.sum for tests: [cmp heavy]"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := agreed.compare(c.got, nil)
			if c.want == "" && (err != nil || !strings.HasPrefix(text, "2 modules linked, 1 more")) {
				t.Errorf("%q and %v, want no error", text, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
}

func TestWithoutIsFree(t *testing.T) {
	got := bill{set("core", "k8s"), set("cmp")}.without(bill{set("k8s"), set("cmp")})
	if _, err := (cost{linked: []string{"core"}}).compare(got, nil); err != nil {
		t.Error(err)
	}
}

func set(paths ...string) map[string]bool {
	all := map[string]bool{}
	for _, path := range paths {
		all[path] = true
	}
	return all
}
