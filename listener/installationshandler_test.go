package listener_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

func installations() fleet.Installations {
	return fleet.Installations{
		Runtimes: map[fleet.InstallationState]int{
			{State: "Ready"}: 3, {State: "Failed", Reason: "Unreachable"}: 2,
		},
		Failed: []fleet.FailedInstallation{
			{Object: types.NamespacedName{Namespace: "kcp-system", Name: "kyma-d"}, Runtime: "runtime-d", Reason: "Unreachable"},
			{Object: types.NamespacedName{Namespace: "kcp-system", Name: "kyma-e"}, Reason: "Unreachable"},
		},
		NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"runtime-a"}, "other": {"runtime-a", "runtime-b"}},
		Phase:      "Confirming", Waiting: []core.RuntimeID{"runtime-b"}, Overdue: []core.RuntimeID{"runtime-c"},
	}
}

func TestInstallationsHandler(t *testing.T) {
	t.Parallel()
	handler := statuspage.Authenticated(statuspage.InstallationsHandler(installations))
	for query, want := range map[string]struct {
		total    int
		problems []string
	}{
		"": {7, []string{
			" failed  Unreachable kcp-system/kyma-e", "runtime-a never_heard kyma  ", "runtime-a never_heard other  ",
			"runtime-b ca_waiting   ", "runtime-b never_heard other  ", "runtime-c certificate_overdue   ",
			"runtime-d failed  Unreachable kcp-system/kyma-d",
		}},
		"?problem=ca_waiting":                      {1, []string{"runtime-b ca_waiting   "}},
		"?problem=never_heard&manager=kyma":        {1, []string{"runtime-a never_heard kyma  "}},
		"?problem=failed&limit=1&offset=1":         {2, []string{"runtime-d failed  Unreachable kcp-system/kyma-d"}},
		"?problem=failed&reason=InstallerRefused":  {0, nil},
		"?search=ME-C":                             {1, []string{"runtime-c certificate_overdue   "}},
		"?runtime=runtime-d":                       {1, []string{"runtime-d failed  Unreachable kcp-system/kyma-d"}},
		"?problem=certificate_overdue&offset=1000": {1, nil},
	} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			var view struct {
				Total    int `json:"total"`
				Problems []struct {
					Runtime string `json:"runtime"`
					Problem string `json:"problem"`
					Manager string `json:"manager"`
					Reason  string `json:"reason"`
					Object  string `json:"object"`
				} `json:"problems"`
			}
			answer := serve(handler, httptest.NewRequest(http.MethodGet, "/"+query, http.NoBody))
			if err := json.Unmarshal(answer.Body.Bytes(), &view); err != nil {
				t.Fatalf("answer %d: %v", answer.Code, err)
			}
			var have []string
			for _, p := range view.Problems {
				have = append(have, strings.Join([]string{p.Runtime, p.Problem, p.Manager, p.Reason, p.Object}, " "))
			}
			if diff := cmp.Diff(want.problems, have); diff != "" || view.Total != want.total {
				t.Errorf("total %d, want %d; problems (-want +have):\n%s", view.Total, want.total, diff)
			}
		})
	}
}

func TestInstallationsHandlerShowsAHundredAtOnce(t *testing.T) {
	t.Parallel()
	handler := statuspage.Authenticated(statuspage.InstallationsHandler(func() (all fleet.Installations) {
		all.Phase = "Confirming"
		for n := range 10_000 {
			all.Waiting = append(all.Waiting, core.RuntimeID(strconv.Itoa(n)))
		}
		return all
	}))
	var view struct {
		Total    int        `json:"total"`
		Problems []struct{} `json:"problems"`
	}
	answer := serve(handler, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if err := json.Unmarshal(answer.Body.Bytes(), &view); err != nil || view.Total != 10_000 || len(view.Problems) != 100 {
		t.Errorf("%d of %d problems, %v", len(view.Problems), view.Total, err)
	}
}

func TestInstallationsHandlerRefuses(t *testing.T) {
	t.Parallel()
	open := statuspage.InstallationsHandler(installations)
	unknown := statuspage.InstallationsHandler(func() fleet.Installations { return fleet.Installations{} })
	handler := statuspage.Authenticated(open)
	tests := map[string]struct {
		handler http.Handler
		method  string
		query   string
		want    int
	}{
		"without authentication":      {open, http.MethodGet, "", http.StatusForbidden},
		"a replica without knowledge": {statuspage.Authenticated(unknown), http.MethodGet, "", http.StatusServiceUnavailable},
		"a write":                     {handler, http.MethodPost, "", http.StatusMethodNotAllowed},
		"an unknown problem":          {handler, http.MethodGet, "?problem=waiting", http.StatusBadRequest},
		"no number":                   {handler, http.MethodGet, "?limit=-1", http.StatusBadRequest},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := serve(test.handler, httptest.NewRequest(test.method, "/"+test.query, http.NoBody))
			if answer.Code != test.want {
				t.Errorf("answer %d, want %d", answer.Code, test.want)
			}
		})
	}
}

// The document shows the answer for these installations.
func TestInstallationsHandlerIsDocumented(t *testing.T) {
	t.Parallel()
	_ = os.Getenv("RUNTIME_WATCHER_DOCUMENTS") // The cache of go test ignores files outside of the module.
	text, err := os.ReadFile("../docs/reference/fleet-api.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)<!-- names: installations -->\n```json\n(.*?)```").FindSubmatch(text)
	if shown == nil {
		t.Fatal("docs/reference/fleet-api.md shows no answer")
	}
	handler := statuspage.Authenticated(statuspage.InstallationsHandler(installations))
	answer := serve(handler, httptest.NewRequest(http.MethodGet, "/?limit=4&offset=2", http.NoBody))
	var want, have any
	if err := errors.Join(json.Unmarshal(shown[1], &want), json.Unmarshal(answer.Body.Bytes(), &have)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("answer (-document +handler):\n%s", diff)
	}
}
