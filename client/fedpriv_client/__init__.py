"""The site's process: what a hospital runs, and all that may touch its records.

It imports only `fedpriv` and Flower's client half. So a hospital has to review nothing but this
package and `fedpriv`.
"""

from fedpriv.environment import set_environment

set_environment()
