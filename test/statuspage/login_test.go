package statuspage

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestClusterLogin shows the page behind the filter of the metrics server of controller-runtime. A real API server
// checks the token and the rights of its service account.
func TestClusterLogin(t *testing.T) {
	plane := apiserver.StartT(t, apiserver.Options{})
	url := serveBehindFilter(t, plane.Config)
	viewer := account(t, plane, "viewer", &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet-viewer"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/fleet"}, Verbs: []string{"get"}}},
	}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet-viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fleet-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "viewer"}},
	})
	stranger := account(t, plane, "stranger")
	lab.Eventually(t, patience, "the role is in force", func() bool {
		return loginAnswer(t, url, viewer).StatusCode == http.StatusOK
	})
	for name, test := range map[string]struct {
		token string
		want  int
	}{
		"viewer": {viewer, 200}, "service account without the right": {stranger, 403}, "no token": {"nonsense", 401},
	} {
		answer := loginAnswer(t, url, test.token)
		challenged := strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Basic ")
		if answer.StatusCode != test.want || challenged != (test.want == http.StatusUnauthorized) {
			t.Errorf("%s: answer %d, want %d; challenged: %t", name, answer.StatusCode, test.want, challenged)
		}
	}
	tab := openTab(t, url, viewer)
	tab.await("Live", `document.getElementById('live').textContent === 'Live'`)
	tab.wantNoProblems()
}

// serveBehindFilter serves a fleet as the metrics server serves its extra handlers.
func serveBehindFilter(t *testing.T, config *rest.Config) (url string) {
	t.Helper()
	filter := lab.Must(controllerruntime.BrowserFilter(filters.WithAuthenticationAndAuthorization)(config, lab.Must(rest.HTTPClientFor(config))))
	handler := lab.Must(filter(logr.Discard(), statuspage.FleetHandler(lab.Must(fleet.New(fleet.Options{})))))
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/fleet"
}

// account creates a service account, and returns its token.
func account(t *testing.T, plane *apiserver.ControlPlane, name string, others ...client.Object) string {
	t.Helper()
	key := types.NamespacedName{Namespace: "default", Name: name}
	return string(lab.Must(lab.Account(t.Context(), plane.Client, key, others...)))
}

func loginAnswer(t *testing.T, url, token string) *http.Response {
	t.Helper()
	request := lab.Must(http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, http.NoBody))
	request.Header.Set("Accept", "text/html")
	request.SetBasicAuth("anyone", token)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	answer := lab.Must((&http.Client{Transport: transport}).Do(request))
	_ = answer.Body.Close()
	return answer
}
