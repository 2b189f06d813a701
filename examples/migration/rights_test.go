package migration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// operatorUser is the ServiceAccount of deploy/migration/controlplane.yaml, and installerUser the
// user of runtime.yaml.
const (
	operatorUser  = "system:serviceaccount:kcp-system:klm-controller-manager"
	installerUser = "runtime-watcher-installer"
)

// limited is an API server with a user that has the rights of a file, and no others.
type limited struct {
	user   string
	file   string // of the rights
	audit  string // file with the requests of the user
	config *rest.Config
}

// newLimited adds to args what an API server needs to record the requests of a user.
func newLimited(t *testing.T, args map[string][]string, user, file string) *limited {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	text := fmt.Sprintf(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
"rules": [{"level": "Metadata", "users": [%q]}]}`, user)
	rig.NoError(t, os.WriteFile(policy, []byte(text), 0o600))
	l := &limited{user: user, file: file, audit: filepath.Join(dir, "audit.log")}
	args["audit-policy-file"] = []string{policy}
	args["audit-log-path"] = []string{l.audit}
	// References to an owner that block its deletion then need the right to update its finalizers.
	args["enable-admission-plugins"] = []string{"OwnerReferencesPermissionEnforcement"}
	return l
}

// addUser makes the user, who has no rights before the guide applies the file.
func (l *limited) addUser(plane *apiserver.ControlPlane) { l.config = rig.Must(plane.AddUser(l.user)) }

// kubeconfig is that of the user.
func (l *limited) kubeconfig(t *testing.T) []byte {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: l.config.Host, CertificateAuthorityData: l.config.CAData}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{ClientCertificateData: l.config.CertData, ClientKeyData: l.config.KeyData}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	return rig.Must(clientcmd.Write(*config))
}

// right is one verb on one resource. An empty namespace or name is every one.
type right struct{ namespace, resource, name, verb string }

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.name != "" {
		text += " " + r.name
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

func (r right) allows(asked right) bool {
	return r.resource == asked.resource && r.verb == asked.verb &&
		(r.namespace == "" || r.namespace == asked.namespace) && (r.name == "" || r.name == asked.name)
}

// rights are those of all roles in the file. The user is the only subject.
func (l *limited) rights(t *testing.T) (all []right) {
	t.Helper()
	for document := range bytes.SplitSeq(test.Read(t, l.file), []byte("\n---\n")) {
		var role rbacv1.Role
		rig.NoError(t, yaml.Unmarshal(document, &role))
		for _, rule := range role.Rules {
			all = append(all, rightsOf(role.Namespace, rule)...)
		}
	}
	return all
}

func rightsOf(namespace string, rule rbacv1.PolicyRule) (all []right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, resource := range rule.Resources {
		for _, name := range names {
			for _, verb := range rule.Verbs {
				all = append(all, right{namespace, strings.Trim(rule.APIGroups[0]+"/"+resource, "/"), name, verb})
			}
		}
	}
	return all
}

// request is a line of the audit log.
type request struct {
	Verb      string `json:"verb"`
	ObjectRef struct {
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// asked returns the rights that a request needs: an apply that makes an object creates it, too.
func (r request) asked() []right {
	o := r.ObjectRef
	asked := right{o.Namespace, strings.Trim(o.APIGroup+"/"+o.Resource+"/"+o.Subresource, "/"), o.Name, r.Verb}
	if r.Verb == "patch" && r.ResponseStatus.Code == 201 {
		created := asked
		created.verb = "create"
		return []right{asked, created}
	}
	return []right{asked}
}

func (l *limited) requests(t *testing.T) (all []request) {
	t.Helper()
	file := rig.Must(os.Open(l.audit))
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err == nil && r.ObjectRef.Resource != "" { // The last line may be cut.
			all = append(all, r)
		}
	}
	return all
}

// used returns the rights of the file that were used, and the refused ones that are not in it.
func (l *limited) used(t *testing.T) (used, refused map[string]bool) {
	t.Helper()
	rights := l.rights(t)
	used = map[string]bool{}
	refused = map[string]bool{}
	for _, r := range l.requests(t) {
		for _, asked := range r.asked() {
			if r.ResponseStatus.Code == 403 {
				refused[asked.String()] = true
			}
			for _, given := range rights {
				if given.allows(asked) {
					used[given.String()] = true
				}
			}
		}
	}
	return used, refused
}

// checkRights wants each right of a file to be used in one of the clusters, or to be among the spare
// ones, and no request to be refused.
func checkRights(t *testing.T, spare []string, clusters ...*limited) {
	t.Helper()
	used := map[string]bool{}
	refused := map[string]bool{}
	for _, l := range clusters {
		u, r := l.used(t)
		maps.Copy(used, u)
		maps.Copy(refused, r)
	}
	for _, missing := range slices.Sorted(maps.Keys(refused)) {
		t.Errorf("%s: %s is missing", clusters[0].file, missing)
	}
	for _, given := range clusters[0].rights(t) {
		if name := given.String(); !used[name] && !slices.Contains(spare, name) {
			t.Errorf("%s: %s is not used", clusters[0].file, name)
		}
	}
	if len(used) == 0 {
		t.Errorf("%s: no right is used, so the audit log is of another user", clusters[0].file)
	}
}

// spare are rights of the operator that this test does not use.
func spare() []string {
	return []string{
		// References of VirtualServices to their Watcher, which admission checks without a request.
		"update operator.kyma-project.io/watchers/finalizers",
		// API servers without WatchList.
		"list operator.kyma-project.io/kymas",
		"list operator.kyma-project.io/watchers",
		"list cert-manager.io/issuers in kcp-system",
		"list networking.istio.io/gateways",
		"list networking.istio.io/virtualservices",
		// Watchers that are new, or without a valid gateway.
		"create networking.istio.io/virtualservices",
		"delete networking.istio.io/virtualservices",
		// An Event that repeats.
		"patch events.k8s.io/events",
		// A Secret that was deleted.
		"create secrets klm-istio-gateway in istio-system",
	}
}

// removalsOf are the rights to remove objects, which are those of the shape that the test does not have.
func removalsOf(objects []*unstructured.Unstructured) (names []string) {
	for _, object := range objects {
		kind := object.GroupVersionKind()
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		group := strings.Trim(kind.Group+"/"+resource.Resource, "/")
		for _, verb := range []string{"get", "delete"} {
			names = append(names, right{object.GetNamespace(), group, object.GetName(), verb}.String())
		}
	}
	return names
}

// passedOn is a right that the installer gives to the agents, for "agent check". It uses none itself.
const passedOn = "get services/proxy https:watcher-agent:webhook in kyma-system"

// checkRights is called at the end. Rights of the other shape are spare. The shorter test of the next
// shape leaves others unused, too.
func (w *world) checkRights(otherShape []*unstructured.Unstructured) {
	w.t.Helper()
	installers := make([]*limited, len(w.members))
	for i, m := range w.members {
		installers[i] = m.rights
	}
	ofPlane := spare()
	ofRuntimes := append(removalsOf(otherShape), passedOn)
	for _, given := range w.rights.rights(w.t) {
		isRenamed := strings.Contains(given.resource, "/runtimewatchers") || strings.HasPrefix(given.name, "klm-runtime-watcher-")
		if isRenamed || w.shape == today.Next {
			ofPlane = append(ofPlane, given.String())
		}
	}
	for _, given := range installers[0].rights(w.t) {
		if w.shape == today.Next {
			ofRuntimes = append(ofRuntimes, given.String())
		}
	}
	checkRights(w.t, ofPlane, w.rights)
	checkRights(w.t, ofRuntimes, installers...)
}
