package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// Fleet returns the freshness of a runtime for each controller.
func (l *Lab) Fleet(ctx context.Context, id string) ([]fleet.Status, error) {
	text, err := l.ask(ctx, "/fleet?runtime="+id)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Runtimes []fleet.Status `json:"runtimes"`
	}
	err = json.Unmarshal(text, &answer)
	return answer.Runtimes, err
}

// Metrics returns the metrics of the replica that leads, in the text format of Prometheus.
func (l *Lab) Metrics(ctx context.Context) ([]byte, error) { return l.ask(ctx, "/metrics") }

// Reconciles returns the number of reconciles of a controller by cause, 0 without an answer.
func (l *Lab) Reconciles(ctx context.Context, controller, cause string) int {
	text, _ := l.Metrics(ctx)
	return int(rig.Sum(text, "lifecycle_manager_reconciles_total", `controller="`+controller+`"`, `cause="`+cause+`"`))
}

// ask sends a request to the replica that leads, as a reader with a token. It does not verify the
// certificate, which the operator makes for itself when it starts.
func (l *Lab) ask(ctx context.Context, path string) ([]byte, error) {
	leader, err := l.Leader(ctx)
	if err != nil {
		return nil, err
	}
	if l.reader == "" {
		if l.reader, err = l.newReader(ctx); err != nil {
			return nil, err
		}
	}
	reader := &http.Client{Timeout: 5 * time.Second, Transport: transport.NewBearerAuthRoundTripper(l.reader,
		&http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // See above.
			DisableKeepAlives: true,
		})}
	return rig.GetWith(ctx, reader, "https://"+leader.metrics+path)
}

// newReader returns the token of a service account that may read, and nothing else.
func (l *Lab) newReader(ctx context.Context) (string, error) {
	token, err := rig.Account(ctx, l.Plane, client.ObjectKey{Namespace: namespace, Name: "reader"},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef: rbacv1.RoleRef{
				APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "lifecycle-manager-reader",
			},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "reader"}},
		})
	return string(token), err
}
