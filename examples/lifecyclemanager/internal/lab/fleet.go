package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// Freshness is that of a runtime for one controller.
type Freshness struct {
	Manager  string    `json:"manager"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	Replicas []Replica `json:"replicas"`
}

// Replica is an agent, with the expiry of its certificate.
type Replica struct {
	CertificateExpiry time.Time `json:"certificateExpiry"`
}

// Fleet returns the freshness of a runtime for each controller.
func (l *Lab) Fleet(ctx context.Context, id string) ([]Freshness, error) {
	text, err := l.ask(ctx, "/fleet?runtime="+id)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Runtimes []Freshness `json:"runtimes"`
	}
	err = json.Unmarshal(text, &answer)
	return answer.Runtimes, err
}

// Metrics returns the metrics of the replica that leads, in the text format of Prometheus.
func (l *Lab) Metrics(ctx context.Context) (string, error) {
	text, err := l.ask(ctx, "/metrics")
	return string(text), err
}

// Reconciles returns the number of reconciles by controller and cause.
func (l *Lab) Reconciles(ctx context.Context) (map[[2]string]int, error) {
	text, err := l.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	counts := make(map[[2]string]int)
	for _, found := range reconciles.FindAllStringSubmatch(text, -1) {
		count, err := strconv.ParseFloat(found[3], 64)
		if err != nil {
			return nil, err
		}
		counts[[2]string{found[2], found[1]}] = int(count)
	}
	return counts, nil
}

var reconciles = regexp.MustCompile(`(?m)^lifecycle_manager_reconciles_total{cause="(.*)",controller="(.*)"} (.*)$`)

// ask sends a request to the replica that leads, as a reader with a token.
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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+leader.metrics+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+l.reader)
	answer, err := readers.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, answer.Status, text)
	}
	return text, err
}

// readers do not verify the certificate, which the operator makes for itself when it starts.
var readers = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // See above.
}}

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
