package certificates

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestObjectName(t *testing.T) {
	t.Parallel()
	tests := []struct{ id, want string }{
		{"runtime-a", "^runtime-a-watcher-tls$"},
		{"3c1dd6f0-1f1a-4b4c-9a0e-3f6b1c9f0a11", "^3c1dd6f0-1f1a-4b4c-9a0e-3f6b1c9f0a11-watcher-tls$"},
		{"Runtime-A", "^runtime-a-[0-9a-f]{10}-watcher-tls$"},
		{"a.b", "^a-b-[0-9a-f]{10}-watcher-tls$"},
		{"-a-", "^a-[0-9a-f]{10}-watcher-tls$"},
		{"ÄÖ", "^[0-9a-f]{10}-watcher-tls$"},
	}
	for _, test := range tests {
		if have := objectName(core.RuntimeID(test.id), clientSuffix); !regexp.MustCompile(test.want).MatchString(have) {
			t.Errorf("name of %q is %q, want %s", test.id, have, test.want)
		}
	}
}

// Every ID that may have a certificate has a name of its own that Kubernetes takes.
func TestObjectNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.String(), 2, 2, rapid.ID).Draw(t, "ids")
		a, b := core.RuntimeID(ids[0]), core.RuntimeID(ids[1])
		if checkID(a) != nil || checkID(b) != nil {
			return
		}
		nameA, nameB := objectName(a, clientSuffix), objectName(b, clientSuffix)
		if errs := validation.IsDNS1123Subdomain(nameA); len(errs) > 0 || nameA == nameB ||
			nameA == objectName(b, webhookSuffix) {
			t.Fatalf("%q and %q: names %q and %q: %v", a, b, nameA, nameB, errs)
		}
	})
}

func TestInvalidRuntimes(t *testing.T) {
	t.Parallel()
	set := &Certificates{
		names: "watcher", namespace: "default", dnsNames: []string{"Listener.example"}, opts: Options{}.withDefaults(),
	}
	tests := map[string]Runtime{
		"no ID":             {Domain: "a.example"},
		"ID too long":       {ID: core.RuntimeID(strings.Repeat("x", 65)), Domain: "a.example"},
		"ID with a newline": {ID: "a\nb", Domain: "a.example"},
		"ID not UTF-8":      {ID: "a\xff", Domain: "a.example"},
		"no domain":         {ID: "a"},
		"wildcard":          {ID: "a", Domain: "*.example"},
		"address":           {ID: "a", Domain: "192.0.2.1"},
		"URL":               {ID: "a", Domain: "https://a.example"},
		"blank":             {ID: "a", Domain: "a b"},
		"of the listener":   {ID: "a", Domain: "listener.EXAMPLE."},
	}
	for name, r := range tests {
		if err := set.validateRuntime(r); !errors.Is(err, errInvalidRuntime) {
			t.Errorf("%s: %v, want %v", name, err, errInvalidRuntime)
		}
	}
	check(t, set.validateRuntime(Runtime{ID: core.RuntimeID(strings.Repeat("x", 64)), Domain: "A.example."}))
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := New(nil, types.NamespacedName{Name: "Upper"}, []string{"*"}, nil, Options{
		Duration: 1, RenewBefore: 1, CADuration: 1, Propagation: -1, Service: "a b",
		ImportCA: types.NamespacedName{Name: "a"}, ListenerSecret: types.NamespacedName{Namespace: "b"},
		AdditionalCAs: []types.NamespacedName{{}},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`"Upper"`, "want a client", "a namespace", "confirmations", `"*"`,
		"Duration", "RenewBefore", "CADuration", "Propagation", "Service",
		"ImportCA", "ListenerSecret", "AdditionalCAs",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
	_, err = New(nil, types.NamespacedName{}, []string{"Runtime-Watcher.runtime-watcher.svc."}, nil, Options{})
	if !strings.Contains(err.Error(), "another name than") {
		t.Errorf("every webhook could act as the server: %v", err)
	}
	if err := (Options{}).withDefaults().validate(nil); err != nil {
		t.Error("the defaults:", err)
	}
}
