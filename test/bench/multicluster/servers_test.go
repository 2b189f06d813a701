package multicluster_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	// written is the key of a ConfigMap with the time of its write, in nanoseconds.
	written = "written"
	// controlPlane is the API server with a Secret for each cluster.
	controlPlane = "control-plane"
)

func clusterName(i int) string { return fmt.Sprint("cluster-", i) }

// startServers starts a control plane, and clusters with ConfigMaps.
func startServers(t *testing.T, ca *testpki.CA, n int) (servers *kit.Servers, all []*kit.Store) {
	t.Helper()
	servers = kit.StartServers(t, ca)
	secrets := servers.Add(controlPlane, corev1.SchemeGroupVersion.WithKind("Secret"), "secrets")
	for i := range n {
		all = append(all, servers.Add(clusterName(i), corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps"))
		for object := range *objects {
			all[i].Put(configMap(object, 0))
		}
		secrets.Put(secret(servers.URL, clusterName(i), ca))
	}
	return servers, all
}

// secret has the kubeconfig of a cluster. The name of its server gives it connections of its own.
func secret(url, name string, ca *testpki.CA) *corev1.Secret {
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}],"users":[{"name":"c","user":{"token":"t"}}],
		"clusters":[{"name":"c","cluster":{"server":"%s/%s","tls-server-name":"%s.example.com","certificate-authority-data":%s}}]}`,
		url, name, name, lab.Must(json.Marshal(ca.PEM)))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Labels:      map[string]string{"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: name + ".example.com"},
		},
		Data: map[string][]byte{"kubeconfig": []byte(kubeconfig)},
	}
}

func configMap(n int, at int64) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: objectName(n), UID: types.UID(objectName(n))},
		Data:       map[string]string{written: strconv.FormatInt(at, 10), "text": strings.Repeat("x", *size)},
	}
}

func objectName(n int) string { return fmt.Sprint("object-", n) }
