package controllerruntime_test

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// pinned returns the objects of a control plane with many faults. By label, "skr-N" is the runtime
// of kyma "N".
func pinned() []*metav1.PartialObjectMetadata {
	label := func(runtime string) map[string]string { return map[string]string{"runtime-id": runtime} }
	return []*metav1.PartialObjectMetadata{
		kyma("good", domain("good.example.com"), label("skr-good")),
		kyma("other", domain("other.example.com"), label("skr-other")),
		kyma("nameless", domain("nameless.example.com"), nil),
		kyma("upper", domain("Upper.Example.com."), label("skr-upper")),
		kyma("missing", nil, label("skr-missing")),
		kyma("empty", domain(""), label("skr-empty")),
		kyma("blank", domain(" "), label("skr-blank")),
		kyma("dot", domain("."), label("skr-dot")),
		kyma("wildcard", domain("*.example.com"), label("skr-wildcard")),
		kyma("twin-1", domain("twin.example.com"), label("skr-twin-1")),
		kyma("twin-2", domain("TWIN.example.com."), label("skr-twin-2")),
		kyma("address-1", domain("192.0.2.1"), label("skr-address-1")),
		kyma("address-2", domain("::ffff:192.0.2.1"), label("skr-address-2")),
		kyma("double-1", domain("double-1.example.com"), label("skr-double")),
		kyma("double-2", domain("double-2.example.com"), label("skr-double")),
	}
}

func TestDomain(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string]bool{"one cache": false, "a cache of several namespaces": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFakeCache(t, pinned()...)
			fake.namespaces = namespaces
			testDomain(t, newRuntimes(t, fake, controllerruntime.ByLabel("runtime-id")))
		})
	}
}

func testDomain(t *testing.T, runtimes *controllerruntime.Runtimes) {
	t.Helper()
	none := types.NamespacedName{}
	for name, tc := range map[string]struct {
		runtime core.RuntimeID
		owner   types.NamespacedName
		domain  string
		reason  string
	}{
		"runtime":                 {"skr-good", none, "good.example.com", ""},
		"owner":                   {"skr-good", owner("good"), "good.example.com", ""},
		"as written":              {"skr-upper", none, "Upper.Example.com.", ""},
		"owner without a runtime": {"some common name", owner("nameless"), "nameless.example.com", ""},
		"owner without runtime, of a known sender": {"skr-good", owner("nameless"), "", "owner_mismatch"},
		"owner of another runtime":                 {"skr-good", owner("other"), "", "owner_mismatch"},
		"owner of another, by a stranger":          {"skr-new", owner("good"), "", "owner_mismatch"},
		"no such runtime":                          {"skr-new", none, "", "runtime_unknown"},
		"empty runtime":                            {"", none, "", "runtime_unknown"},
		"no such owner":                            {"skr-good", owner("gone"), "", reasons.OwnerMissing},
		"owner in another namespace": {
			"skr-good", types.NamespacedName{Namespace: "default", Name: "good"}, "", reasons.OwnerMissing,
		},
		"owner without namespace":            {"skr-good", types.NamespacedName{Name: "good"}, "", reasons.OwnerMissing},
		"owner without name":                 {"skr-good", types.NamespacedName{Namespace: "kcp-system"}, "", reasons.OwnerMissing},
		"missing":                            {"skr-missing", none, "", reasons.DomainMissing},
		"missing, by owner":                  {"skr-missing", owner("missing"), "", reasons.DomainMissing},
		"empty":                              {"skr-empty", none, "", reasons.DomainEmpty},
		"blank":                              {"skr-blank", none, "", reasons.DomainEmpty},
		"the root of DNS":                    {"skr-dot", none, "", reasons.DomainEmpty},
		"wildcard":                           {"skr-wildcard", owner("wildcard"), "", reasons.DomainWildcard},
		"registered twice":                   {"skr-twin-1", none, "", reasons.DomainAmbiguous},
		"registered twice, in other letters": {"skr-twin-2", owner("twin-2"), "", reasons.DomainAmbiguous},
		"an address registered twice":        {"skr-address-1", none, "", reasons.DomainAmbiguous},
		"two domains":                        {"skr-double", none, "", reasons.DomainAmbiguous},
		"two domains, one named":             {"skr-double", owner("double-2"), "double-2.example.com", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := runtimes.Domain(t.Context(), tc.runtime, &core.WatchEvent{Owner: tc.owner})
			if got != tc.domain {
				t.Errorf("have domain %q, want %q", got, tc.domain)
			}
			if tc.reason == "" {
				if err != nil {
					t.Errorf("have %v, want no error", err)
				}
				return
			}
			if !errors.Is(err, core.ErrForbidden) || core.Reason(err) != tc.reason {
				t.Errorf("have %v (%s), want it forbidden (%s)", err, core.Reason(err), tc.reason)
			}
		})
	}
}

func TestDomainAnnotationOption(t *testing.T) {
	t.Parallel()
	fake := newFakeCache(t, kyma("skr-1", map[string]string{"host": "skr-1.example.com"}, nil))
	runtimes, err := controllerruntime.NewRuntimes(t.Context(), fake, kymaKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{DomainAnnotation: "host"})
	check(t, err)
	if got, err := runtimes.Domain(t.Context(), "skr-1", &core.WatchEvent{}); err != nil || got != "skr-1.example.com" {
		t.Errorf("have %q, %v, want the domain of the annotation", got, err)
	}
}
