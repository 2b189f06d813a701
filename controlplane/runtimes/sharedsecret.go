package runtimes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sharedSecretAge is how long the content of a Secret for all runtimes is kept.
const sharedSecretAge = time.Minute

// proxyCredentialsKey is a key of the Secret in [Options.ProxyCredentials], as in the chart.
const proxyCredentialsKey = "credentials"

// sharedKey is a key of a Secret for all runtimes.
type sharedKey struct {
	secret types.NamespacedName
	key    string
}

// readSharedSecret returns the value of a key. It reads the Secret about once a minute, and returns
// nil without a name.
func (r *reconciler) readSharedSecret(ctx context.Context, where sharedKey) ([]byte, error) {
	if where.secret == (types.NamespacedName{}) {
		return nil, nil
	}

	kept, isKept := r.shared.Get(where)
	if isKept {
		content, _ := kept.([]byte)
		return content, nil
	}

	secret := &corev1.Secret{}
	if err := r.secrets.Get(ctx, where.secret, secret); err != nil {
		return nil, fmt.Errorf("secret %s: %w", where.secret, err)
	}
	content := secret.Data[where.key]
	if len(content) == 0 {
		return nil, fmt.Errorf("secret %s: want a %s, have none", where.secret, where.key)
	}

	r.shared.Set(where, content, sharedSecretAge)
	return content, nil
}
