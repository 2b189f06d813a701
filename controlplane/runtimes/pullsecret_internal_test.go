package runtimes

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A pull secret is read once a minute for all runtimes, so that a rotation reaches them.
func TestPullSecretIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := newPlane(t)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "registry"}}
		p := &pullSecret{reader: plane, name: client.ObjectKeyFromObject(secret)}
		want := func(content string) {
			t.Helper()
			if have, err := p.get(t.Context()); string(have) != content || (err == nil) != (content != "") {
				t.Errorf("%q, error %v, want %q", have, err, content)
			}
		}
		want("") // There is none.
		check(t, plane.Create(t.Context(), secret))
		want("") // It is empty.
		for _, content := range []string{"{}", `{"auths":{}}`} {
			secret.Data = map[string][]byte{corev1.DockerConfigJsonKey: []byte(content)}
			check(t, plane.Update(t.Context(), secret))
			<-time.After(pullSecretAge)
			want(content)
		}
		check(t, plane.Delete(t.Context(), secret))
		want(`{"auths":{}}`)
		<-time.After(pullSecretAge)
		want("")
	})
}
